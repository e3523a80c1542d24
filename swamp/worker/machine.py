"""The machine: the same for every process that uses the cache folder, and for no other."""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from datastore.errors import SwampError

FILE_NAME = "machine-id"
STARTS_NAME = "starts"
_ID = re.compile(r"[0-9a-f-]{32,64}\Z")
_STARTS_MOST = 1 << 30
_DIALS_BITS = 32
"""No process dials more often than that."""


class MachineIdError(SwampError):
    """The cache folder cannot give or keep a machine id."""


class Machine(NamedTuple):
    """`dials`: at least as many sockets as all its processes before this one have dialled."""

    id: str
    dials: int = 0


def next_process(cache_dir: Path) -> Machine:
    """The machine with that folder, for a process that starts; blocking, MachineIdError.

    The dials begin anew where they cannot be kept.
    """
    known = machine_id(cache_dir)
    path = cache_dir / STARTS_NAME
    start = 1
    with _turn(cache_dir):
        with suppress(OSError, ValueError):
            start = min(max(0, int(path.read_text(encoding="ascii"))), _STARTS_MOST) + 1
        with suppress(OSError):
            _keep(path, start)
    return Machine(known, start << _DIALS_BITS)


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """One process at a time, where the folder can be locked; the others wait."""
    with ExitStack() as stack:
        with suppress(OSError):
            turn = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, turn)
            fcntl.flock(turn, fcntl.LOCK_EX)
        yield


def _keep(path: Path, start: int) -> None:
    # Not synced: after a loss of power, none of the earlier processes can still be heard.
    descriptor, temporary = tempfile.mkstemp(prefix=f".{STARTS_NAME}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"{start}\n")
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise


def machine_id(cache_dir: Path) -> str:
    """The id in `cache_dir`, made there at the first call; blocking.

    Of several processes that start at once, one makes it and all get the same.
    """
    path = cache_dir / FILE_NAME
    try:
        cache_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not path.exists():
            _create(path)
        found = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise MachineIdError(f"{path}: cannot be read or created: {error}") from error
    if not _ID.match(found):
        raise MachineIdError(f"{path}: not a machine id; remove the file to become a new machine")
    return found


def _create(path: Path) -> None:
    # A link appears with its content or not at all, and never over another one.
    descriptor, temporary = tempfile.mkstemp(prefix=".machine-id-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(f"{uuid.uuid4()}\n")
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        os.unlink(temporary)
