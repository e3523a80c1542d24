"""What to do about something that the disk, or what stands on it, refuses: by the error's words."""

from __future__ import annotations

import errno
import os

_WAYS: tuple[tuple[tuple[int, ...], tuple[str, ...], str], ...] = (
    ((errno.ENOSPC, errno.EDQUOT), ("disk is full",), "make room on the disk"),
    ((errno.EROFS,), ("readonly database",), "mount the disk writable, or let the server write"),
    ((errno.EACCES, errno.EPERM), (), "let the user who runs swamp read and write there"),
    ((errno.EMFILE, errno.ENFILE), (), "let the process have more files open (`ulimit -n`)"),
    (
        (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG),
        ("no regular file", "is a folder"),
        "move away what stands there",
    ),
)


def way_out(reason: str) -> str:
    """The first step out of what `reason` tells, as a clause that others can be added to.

    Of many troubles in one line the first one counts.
    """
    said = reason.lower()
    found: list[tuple[int, str]] = []
    for numbers, words, way in _WAYS:
        places = [said.find(word.lower()) for word in (*words, *map(os.strerror, numbers))]
        found += [(place, way) for place in places if place >= 0]
    return min(found)[1] if found else "mend what it names"
