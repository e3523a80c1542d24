"""One definition file as last read: its stat, what it defines, and what is wrong with it.

Reading is lazy twice: the same stat costs no read, the same bytes cost no parse.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat as modes
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from datastore.clock import Clock
from datastore.definitions.checks import parse_workflow
from datastore.definitions.model import ModelDefinition, parse_model
from datastore.definitions.workflow import Workflow
from datastore.errors import InvalidFile
from datastore.yaml_loader import load

Kind = Literal["workflow", "model"]
Definition = Workflow | ModelDefinition
Stat = tuple[int, int, int]
"""mtime_ns, size, inode."""

_RACY_NS = 50_000_000


@dataclass(frozen=True, slots=True)
class DefinitionFile:
    """A file. `definition` is its last good version, `problem` what is wrong with it now."""

    kind: Kind
    stat: Stat | None
    """None where the next look must read the file again whatever its stat says."""
    digest: bytes = b""
    definition: Definition | None = None
    problem: InvalidFile | None = None
    text: str = ""
    """What a file with a problem says, to tell who asks in vain for a name that is in it."""

    def may_mean(self, name: str) -> bool:
        """Whether a file with a problem was probably meant to define that name or id."""
        known = self.definition
        if known is not None and name in (known.name, known.id):
            return True
        word = re.escape(name)
        return re.search(rf"(?<![\w@/-]){word}(?![\w/-])", self.text) is not None


def look(
    path: Path, root: Path, kind: Kind, seen: DefinitionFile | None, clock: Clock
) -> DefinitionFile | None:
    """The file as it is now: `seen` itself if nothing changed, None if there is no file.

    A file that cannot be read or parsed keeps the definition it had. Problems name it below `root`.
    """
    try:
        if seen is not None and seen.stat == _stat(path):
            return seen
        looked_at_ns = int(clock.now().timestamp() * 1e9)
        stat = _stat(path)
        odd = oddity(path)
        data = b"" if odd else path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        odd = oddity(path)
        if odd is None:
            return None
        return DefinitionFile(kind, None, problem=InvalidFile(shown(path, root), odd))
    except OSError as error:
        odd = f"cannot be read: {error.strerror}"
    if odd is not None:
        problem = InvalidFile(shown(path, root), odd)
        return DefinitionFile(kind, None, b"", seen.definition if seen else None, problem)
    # A second write within one tick of the file system's clock would leave the same stat.
    settled = looked_at_ns - stat[0] > _RACY_NS
    trusted = stat if settled else None
    digest = hashlib.sha256(data).digest()
    if seen is not None and seen.digest == digest:
        return replace(seen, stat=trusted)
    return _parsed(data, shown(path, root), DefinitionFile(kind, trusted, digest), seen)


def oddity(path: Path) -> str | None:
    """Why what is at a path cannot be read as a file; None for a file, and where nothing is.

    Reading a pipe would wait for ever.
    """
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return "is a link to what is not there" if path.is_symlink() else None
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if modes.S_ISDIR(mode):
        return "is a folder, expected a file"
    return None if modes.S_ISREG(mode) else "is no regular file"


def shown(path: Path, root: Path) -> str:
    """The path as people read it: below the repository, with slashes."""
    return path.relative_to(root).as_posix()


def _stat(path: Path) -> Stat:
    status = os.stat(path)
    return (status.st_mtime_ns, status.st_size, status.st_ino)


def _parsed(
    data: bytes, shown_path: str, file: DefinitionFile, seen: DefinitionFile | None
) -> DefinitionFile:
    parse = parse_workflow if file.kind == "workflow" else parse_model
    try:
        definition = parse(load(data, shown_path), shown_path)
    except InvalidFile as problem:
        last_good = seen.definition if seen else None
        text = data.decode(errors="replace")
        return replace(file, definition=last_good, problem=problem, text=text)
    return replace(file, definition=definition)
