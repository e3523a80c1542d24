"""Folders that are watched: noticed when one of them was removed, or is another by now.

A file watch follows the folder that was there when it began; `git clean`, a checkout or `rm -r`
may put another in its place, and nobody is told. Blocking, but never for long.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


class WatchedFolders:
    """Holds each folder open: as long as it is, its inode number is not given to another one."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self._folders = tuple(folders)
        self._handles: dict[Path, int] = {}

    def hold(self) -> None:
        """Remember the folders that are there now."""
        self.release()
        for folder in self._folders:
            with suppress(FileNotFoundError, NotADirectoryError):
                self._handles[folder] = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def replaced(self) -> list[Path]:
        """The folders that are not as at the last `hold`: gone, new, or others by now."""
        return [folder for folder in self._folders if not self._is_as_held(folder)]

    def lost(self) -> list[Path]:
        """Of those, the ones that were there: what was in them has gone with them."""
        return [folder for folder in self.replaced() if folder in self._handles]

    def _is_as_held(self, folder: Path) -> bool:
        handle = self._handles.get(folder)
        try:
            now = os.stat(folder)
        except (FileNotFoundError, NotADirectoryError):
            return handle is None
        if handle is None:
            return False
        held = os.fstat(handle)
        return (held.st_dev, held.st_ino) == (now.st_dev, now.st_ino)

    def release(self) -> None:
        """Let go of all folders."""
        for handle in self._handles.values():
            os.close(handle)
        self._handles.clear()
