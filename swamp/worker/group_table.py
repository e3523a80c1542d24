"""The process groups that exist, in a file without a name that a worker shares with its guard.

Writing an entry wakes nobody and cannot be lost: what is in the table when the worker is killed,
between whichever two instructions, is what the guard reads. A line in a pipe for each group would
wake the guard twice for every step.

Standard library only, for the guard imports it without anything else.
"""

from __future__ import annotations

import heapq
import os
import struct
import tempfile

_ENTRY = struct.Struct("=i")
_FREE = _ENTRY.pack(0)


class GroupTable:
    """The writer's side. Entries are taken lowest first, so the file stays as small as can be."""

    def __init__(self) -> None:
        self.handle = _nameless_file()
        """The file's descriptor; a child that inherits it reads the table with `groups_in`."""
        self._free: list[int] = []
        self._entries = 0

    def enter(self, group: int) -> int:
        """Note a group (> 0); the entry, to `leave` when nothing of the group is left. OSError."""
        if self._free:
            entry = heapq.heappop(self._free)
        else:
            entry = self._entries
            self._entries += 1
        os.pwrite(self.handle, _ENTRY.pack(group), entry * _ENTRY.size)
        return entry

    def leave(self, entry: int) -> None:
        """Forget the group of that entry."""
        os.pwrite(self.handle, _FREE, entry * _ENTRY.size)
        heapq.heappush(self._free, entry)

    def close(self) -> None:
        """Give the file up; who inherited it keeps it."""
        os.close(self.handle)


def groups_in(handle: int) -> list[int]:
    """The groups in the table with that descriptor."""
    data = os.pread(handle, os.fstat(handle).st_size, 0)
    whole = len(data) - len(data) % _ENTRY.size
    return [group for (group,) in _ENTRY.iter_unpack(data[:whole]) if group > 0]


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("swamp-groups")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
