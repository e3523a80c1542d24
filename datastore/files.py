"""The only writer of files below a repository: every file is whole at every instant.

A file is written beside its target under a name that starts with a dot, and swapped in. On Linux
the swap is an exchange: it is faster than a rename over the old file, and it hands back what was
displaced, so that a person's save at the same instant can be put back instead of being lost.
Nothing here waits for the disk except `swap_if_unchanged`, which writes files of people, and
`sync_file_system`: records can be written again from the journal.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import stat as stat_bits
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from datastore.courtesy import Pause, no_pause
from datastore.regular_file import read_bytes
from datastore.unicode_text import is_unicode

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_NO_EXCHANGE = frozenset((errno.ENOENT, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM))
_numbers = itertools.count()
_T = TypeVar("_T")


def _libc_function(name: str) -> Callable[..., int] | None:
    """A function of the C library that Python does not offer; None where there is no such."""
    found: Callable[..., int] | None = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    return found


_renameat2 = _libc_function("renameat2")
_syncfs = _libc_function("syncfs")


class Stat(NamedTuple):
    """What tells one version of a file that the server writes from the next without reading it.

    It is known before the file is swapped in, which changes the ctime.
    """

    mtime_ns: int
    size: int
    inode: int


class Edition(NamedTuple):
    """What tells one version of a person's file from the next without reading it.

    Tools write in place and set the mtime back (`touch -r`, `cp -p`, `rsync -t --inplace`); nobody
    sets the ctime back. A file whose mode or name alone changed costs one look.
    """

    ctime_ns: int
    size: int
    inode: int


def stat_of(path: str | Path) -> Stat | None:
    """The stat of a regular file; None without one, also where a link or a folder has the name."""
    found = _regular(path)
    return None if found is None else _stat(found)


def edition_of(path: str | Path) -> Edition | None:
    """As `stat_of`, for a person's file."""
    found = _regular(path)
    return None if found is None else edition_in(found)


def edition_in(status: os.stat_result) -> Edition:
    """What of the status of a person's file tells one version from the next."""
    return Edition(status.st_ctime_ns, status.st_size, status.st_ino)


def write(path: str | Path, data: bytes, aside: str | Path | None = None) -> Stat:
    """Put `data` at `path`, whatever is there, keeping its mode bits.

    It is written to another file first, in the folder `aside` where that is on the same file
    system, so that whoever watches the folder of `path` hears of it once; else beside it.

    The answer is the stat the file has at `path`, taken before anybody could see it there: a
    watcher that finds this stat knows its own write. OSError leaves the old file and no other.
    """
    current = _regular(path)
    if aside is not None:
        with suppress(FileNotFoundError, NotADirectoryError):
            temp, stat = _write_beside(path, data, current, folder=aside)
            if _moved(temp, path, current is not None):
                return stat
    temp, stat = _write_beside(path, data, current)
    _moved(temp, path, current is not None, may_cross=False)
    return stat


def write_once(path: str | Path, data: bytes) -> bool:
    """Put `data` at `path` if nothing is there; whether it was put."""
    temp, _ = _write_beside(path, data, None)
    try:
        with _told_as(path):
            os.link(temp, path)
    except FileExistsError:
        return False
    finally:
        remove(temp)
    return True


def swap_if_unchanged(path: str | Path, data: bytes, expected: bytes) -> bool:
    """Replace a person's file, durably, if it still holds `expected`; whether it did.

    When something else came out of the exchange, it is put back. For those few microseconds `path`
    shows `data`; a save that falls into them comes out of the second exchange and is put back in
    turn, so the newest save always ends at `path`. Two gaps remain. A program that opened the file
    before the swap without emptying it, and writes through that handle after it, writes to a file
    that has lost its name. A process killed between exchange and undo leaves the displaced save
    beside `path` in a dot file that ends in `.swap`; nothing may sweep those unseen.
    Without an exchange (other systems) the file is compared and then replaced.
    """
    current = _regular(path)
    if current is None:
        return False
    temp, _ = _write_beside(path, data, current, swap=True)
    try:
        exchanged = _exchanged(temp, path)
        swapped = exchanged or _replaced(temp, path, expected)
    except BaseException:
        remove(temp)
        raise
    if exchanged:
        came_out = read_bytes(temp)
        swapped = came_out == expected
        if not swapped:
            _put_back(temp, path, data, came_out)
    remove(temp)
    if swapped:
        _sync_folder(path)
    return swapped


def remove_if_unchanged(path: str | Path, expected: bytes) -> bool:
    """Remove a person's file, durably, if it still holds `expected`; whether it did.

    A save at the same instant stays at `path`. A process that is killed in between leaves the file
    beside `path` in a dot file that ends in `.swap`.
    """
    with _told_as(path):
        temp, handle = _create_in(os.path.dirname(path), ".swap")
        os.close(handle)
    try:
        with _told_as(path):
            os.rename(path, temp)
        removed = read_bytes(temp) == expected
        if not removed:
            # Where somebody has saved once more, that is newer.
            with suppress(FileExistsError):
                os.link(temp, path)
    except FileNotFoundError:
        removed = False
    remove(temp)
    if removed:
        _sync_folder(path)
    return removed


def remove(path: str | Path) -> None:
    """Remove a file; nothing happens when it is not there."""
    with suppress(FileNotFoundError):
        os.unlink(path)


def sync_file_system(path: str | Path) -> None:
    """Return when everything written so far to the file system of `path` is on disk.

    It waits for the writes of all programs: fit for a background thread only.
    """
    if _syncfs is None:
        os.sync()
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        if _syncfs(handle) != 0:
            raise _os_error(path)
    finally:
        os.close(handle)


def scan(
    folder: str | Path, pause: Pause = no_pause, hidden: list[str] | None = None
) -> dict[str, Stat]:
    """The YAML files of a folder by file name: regular ones, none that starts with a dot.

    Empty without the folder. A file that goes during the scan is not listed. `hidden` is told all
    names that start with a dot.
    """
    return _scan(folder, pause, [] if hidden is None else hidden, _stat)


def editions(folder: str | Path, pause: Pause = no_pause) -> dict[str, Edition]:
    """As `scan`, for a folder of people's files; without those whose names are no UTF-8."""
    found = _scan(folder, pause, [], edition_in) if os.path.isdir(folder) else {}
    return {name: edition for name, edition in found.items() if is_unicode(name)}


def _scan(
    folder: str | Path, pause: Pause, hidden: list[str], told: Callable[[os.stat_result], _T]
) -> dict[str, _T]:
    found: dict[str, _T] = {}
    with suppress(FileNotFoundError), opened(folder) as handle, os.scandir(handle) as entries:
        for entry in entries:
            pause()
            name = entry.name
            if name.startswith("."):
                hidden.append(name)
                continue
            if not name.endswith(".yaml"):
                continue
            try:
                if entry.is_file(follow_symlinks=False):
                    found[name] = told(entry.stat(follow_symlinks=False))
            except FileNotFoundError:
                continue
    return found


@contextmanager
def opened(folder: str | Path) -> Iterator[int]:
    """A folder by its handle: each stat in it is spared the way there."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield handle
    finally:
        os.close(handle)


def ensure_ignored(folder: str | Path, gitignore: str) -> None:
    """Have that `.gitignore` in the folder; one that is there is left as it is."""
    file = Path(folder, ".gitignore")
    # Looked at often, and whoever is idle writes nothing.
    if not os.path.lexists(file):
        write_once(file, gitignore.encode())


def _stat(found: os.stat_result) -> Stat:
    return Stat(found.st_mtime_ns, found.st_size, found.st_ino)


def _regular(path: str | Path) -> os.stat_result | None:
    with suppress(FileNotFoundError, NotADirectoryError):
        found = os.lstat(path)
        return found if stat_bits.S_ISREG(found.st_mode) else None
    return None


def _write_beside(
    path: str | Path,
    data: bytes,
    replaced: os.stat_result | None,
    *,
    swap: bool = False,
    folder: str | Path | None = None,
) -> tuple[str, Stat]:
    """A finished file with the mode bits of the one it replaces, in its folder or in another.

    `swap`: durable, and named as what must not be swept away unseen.
    """
    with _told_as(path):
        temp, handle = _create_in(folder or os.path.dirname(path), ".swap" if swap else ".tmp")
        try:
            try:
                _write_all(handle, data)
                if replaced is not None:
                    _look_like(handle, replaced)
                if swap:
                    os.fsync(handle)
                stat = _stat(os.fstat(handle))
            finally:
                os.close(handle)
        except BaseException:
            remove(temp)
            raise
    return temp, stat


def _moved(temp: str, path: str | Path, replaces: bool, *, may_cross: bool = True) -> bool:
    """Put a finished file in its place; False, and it is gone, if that is on another disk."""
    try:
        # An exchange with a folder would succeed, a rename onto one fails as it should.
        if replaces and _exchanged(temp, path):
            # Now it is the displaced file.
            remove(temp)
        else:
            with _told_as(path):
                os.replace(temp, path)
    except OSError as error:
        remove(temp)
        if may_cross and error.errno == errno.EXDEV:
            return False
        raise
    except BaseException:
        remove(temp)
        raise
    return True


def _write_all(handle: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]


def _look_like(handle: int, replaced: os.stat_result) -> None:
    """The mode bits of the file that is replaced and, where we may, its owner."""
    if replaced.st_uid != os.geteuid():
        # A server that runs as root must not take a person's file away from them.
        with suppress(PermissionError):
            os.fchown(handle, replaced.st_uid, replaced.st_gid)
    os.fchmod(handle, stat_bits.S_IMODE(replaced.st_mode))


@contextmanager
def _told_as(path: str | Path) -> Iterator[None]:
    """Errors name the file that people know, not the one that is written beside it."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None


def _create_in(folder: str | Path, suffix: str) -> tuple[str, int]:
    for number in _numbers:
        temp = os.path.join(folder, f".{os.getpid()}-{number}{suffix}")
        # Left by an earlier process with the same pid: take the next number.
        with suppress(FileExistsError):
            return temp, os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    raise AssertionError("numbers do not end")


def _exchanged(temp: str, path: str | Path) -> bool:
    """Swap two files; False without an exchange: nothing at `path`, or no such call here."""
    if _renameat2 is None:
        return False
    old, new = os.fsencode(temp), os.fsencode(path)
    if _renameat2(_AT_FDCWD, old, _AT_FDCWD, new, _RENAME_EXCHANGE) == 0:
        return True
    if ctypes.get_errno() in _NO_EXCHANGE:
        return False
    raise _os_error(path)


def _replaced(temp: str, path: str | Path, expected: bytes) -> bool:
    """Swap by rename after a look; a save between the two is lost, hence only the fallback."""
    try:
        unchanged = read_bytes(path) == expected
    except FileNotFoundError:
        return False
    if unchanged:
        with _told_as(path):
            os.replace(temp, path)
    return unchanged


def _put_back(temp: str, path: str | Path, placed: bytes, came_out: bytes) -> None:
    """Exchange until what comes out is what was placed: then nobody saved in between.

    What then is in `temp` is ours, or a save that a later one has replaced. When somebody removes
    `path` meanwhile it stays removed. Any other error leaves `temp`, which holds a person's save.
    """
    while _exchanged(temp, path):
        placed, expected_out = came_out, placed
        came_out = read_bytes(temp)
        if came_out == expected_out:
            return


def _sync_folder(path: str | Path) -> None:
    handle = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _os_error(path: str | Path) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), os.fspath(path))
