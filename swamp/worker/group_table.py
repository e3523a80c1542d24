"""The process groups that exist, in a file without a name that a worker shares with its guard.

Writing an entry wakes nobody and cannot be lost: what is in the table when the worker is killed,
between whichever two instructions, is what the guard reads. A line in a pipe for each group would
wake the guard twice for every step. An entry is taken before there is a process, so that none is
unknown, wherever the worker was stopped. In front of them stands until when they may run although
the worker says no more; in each, the guard notes that it ended it.

Standard library only, for the guard imports it without anything else.
"""

from __future__ import annotations

import heapq
import os
import struct
import tempfile
from typing import NamedTuple

_HEAD = struct.Struct("=d8x")
_ENTRY = struct.Struct("=iIQ")
_GROUP = struct.Struct("=i")
_NOTE = struct.Struct("=I")
_GIVEN_UP_AT = _GROUP.size
"""Where in an entry the guard writes; all else is the worker's."""
_FREE = 0
_MARKED = -1
"""In place of a group that is being created, or is empty: the mark alone finds processes then."""


class Entry(NamedTuple):
    """An execution that may have processes, by its number: the end of its mark.

    `group` is None before it has a process group, and once that is empty.
    """

    place: int
    group: int | None
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

    def expect(self, number: int) -> int:
        """Note an execution before it has a process; the entry, to `leave` when nothing is left.

        OSError.
        """
        if self._free:
            entry = heapq.heappop(self._free)
        else:
            entry = self._entries
            self._entries += 1
        os.pwrite(self.handle, _ENTRY.pack(_MARKED, 0, number), _place(entry))
        return entry

    def enter(self, entry: int, group: int) -> None:
        """Note the group (> 0) of an execution that was expected."""
        os.pwrite(self.handle, _GROUP.pack(group), _place(entry))

    def forget_group(self, entry: int) -> None:
        """Note that the group is empty: its number may soon be a stranger's."""
        os.pwrite(self.handle, _GROUP.pack(_MARKED), _place(entry))

    def was_given_up(self, entry: int, number: int) -> bool:
        """Whether the guard ended that execution, as its limit had come."""
        noted = os.pread(self.handle, _NOTE.size, _place(entry) + _GIVEN_UP_AT)
        return noted == _NOTE.pack(_note(number))

    def leave(self, entry: int) -> None:
        """Forget the execution of that entry."""
        os.pwrite(self.handle, _GROUP.pack(_FREE), _place(entry))
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
        Entry(place, None if group == _MARKED else group, given_up == _note(number), number)
        for place, (group, given_up, number) in entries
        if group != _FREE
    ]


def note_given_up(handle: int, entry: Entry) -> None:
    """Have the worker find, if it ever goes on, that its guard ended that execution."""
    os.pwrite(handle, _NOTE.pack(_note(entry.number)), _place(entry.place) + _GIVEN_UP_AT)


def _note(number: int) -> int:
    """What the guard notes: of this execution, not of who had or gets the entry; never 0."""
    return number % 0xFFFF_FFFF + 1


def _place(entry: int) -> int:
    return _HEAD.size + entry * _ENTRY.size


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("swamp-groups")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
