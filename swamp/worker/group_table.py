"""The process groups that exist, in a file without a name that a worker shares with its guard.

Writing an entry wakes nobody and cannot be lost: what is in the table when the worker is killed,
between whichever two instructions, is what the guard reads. A line in a pipe for each group would
wake the guard twice for every step. In front of them stands until when they may run although the
worker says no more; behind each group, the guard notes that it ended it.

Standard library only, for the guard imports it without anything else.
"""

from __future__ import annotations

import heapq
import os
import struct
import tempfile
from typing import NamedTuple

_HEAD = struct.Struct("=d8x")
_ENTRY = struct.Struct("=iiQ")
_GROUP = struct.Struct("=i")
_GIVEN_UP_AT = _GROUP.size
"""Where in an entry the guard writes; all else is the worker's."""


class Entry(NamedTuple):
    """A process group that exists, and the number of its execution: the end of its mark."""

    place: int
    group: int
    given_up: bool
    number: int


class GroupTable:
    """The worker's side. Entries are taken lowest first, so the file stays as small as can be."""

    def __init__(self) -> None:
        self.handle = _nameless_file()
        """The file's descriptor; a child that inherits it reads the table with `entries_in`."""
        self._free: list[int] = []
        self._entries = 0
        self.set_limit(None)

    def set_limit(self, at_s: float | None) -> None:
        """When all groups are to end, by `real_time`, unless this is said anew; None for never."""
        os.pwrite(self.handle, _HEAD.pack(at_s or 0.0), 0)

    def enter(self, group: int, number: int) -> int:
        """Note a group (> 0); the entry, to `leave` when nothing of the group is left. OSError."""
        if self._free:
            entry = heapq.heappop(self._free)
        else:
            entry = self._entries
            self._entries += 1
        os.pwrite(self.handle, _ENTRY.pack(group, 0, number), _place(entry))
        return entry

    def was_given_up(self, entry: int, group: int) -> bool:
        """Whether the guard ended that group, as its limit had come."""
        noted = os.pread(self.handle, _GROUP.size, _place(entry) + _GIVEN_UP_AT)
        return noted == _GROUP.pack(group)

    def leave(self, entry: int) -> None:
        """Forget the group of that entry."""
        os.pwrite(self.handle, _GROUP.pack(0), _place(entry))
        heapq.heappush(self._free, entry)

    def close(self) -> None:
        """Give the file up; who inherited it keeps it."""
        os.close(self.handle)


def limit_in(handle: int) -> float | None:
    """The limit in the table with that descriptor."""
    (at_s,) = _HEAD.unpack(os.pread(handle, _HEAD.size, 0))
    return at_s or None


def entries_in(handle: int) -> list[Entry]:
    """The groups in the table with that descriptor."""
    data = os.pread(handle, os.fstat(handle).st_size, 0)[_HEAD.size :]
    whole = len(data) - len(data) % _ENTRY.size
    entries = enumerate(_ENTRY.iter_unpack(data[:whole]))
    return [
        Entry(place, group, given_up == group, number)
        for place, (group, given_up, number) in entries
        if group > 0
    ]


def note_given_up(handle: int, entry: Entry) -> None:
    """Have the worker find, if it ever goes on, that its guard ended that group."""
    os.pwrite(handle, _GROUP.pack(entry.group), _place(entry.place) + _GIVEN_UP_AT)


def _place(entry: int) -> int:
    return _HEAD.size + entry * _ENTRY.size


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("swamp-groups")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
