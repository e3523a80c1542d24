"""`.swamp/` while the server runs: what is removed there is noticed, told, and written again.

`git clean -fdx` removes the folder like everything else that git ignores. Journal, index, key and
the events of live runs are restored from memory, and the lock is taken again before anything else,
so that no second server finds the repository free. Secrets and outputs are in no memory: they are
lost, and that is said.

Where the repository's own folder is another one, or is gone for more than a moment, nothing is
written: the lock of the one that was served is still held, and the process has to end. So it has
where another process was faster to take the lock: two would do the same work.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from datastore.engine import OpenedEngine
from datastore.errors import RepositoryMoved
from datastore.events import EventLog
from datastore.key_file import place
from datastore.layout import Layout, create_folders
from datastore.lock import RepositoryLock
from datastore.regular_file import NO_FILE_MORE, read_bytes
from datastore.trouble import OF_THE_DISK, Trouble, together
from datastore.watched_folders import WatchedFolders

log = logging.getLogger(__name__)

LOOK_S = 0.5
"""How often the folder is looked at, seconds: a few stats."""


class PrivateFolder:
    """Keeps what the server needs in `.swamp/`."""

    def __init__(
        self, layout: Layout, lock: RepositoryLock, engine: OpenedEngine, events: EventLog
    ) -> None:
        self._layout = layout
        self._lock = lock
        self._engine = engine
        self._events = events
        secrets = layout.private / "secrets"
        self._folders = WatchedFolders((layout.events, layout.logs, layout.data, secrets))
        self._key: bytes | None = None
        self._was_gone = False
        self._unseen = Trouble(".swamp/ cannot be looked at", log)
        self._refused = Trouble("what was removed from .swamp/ cannot be restored yet", log)

    async def keep(self) -> None:
        """Look again and again until cancelled; RepositoryMoved once that has to end."""
        try:
            with self._unseen.caught():
                await asyncio.to_thread(self._folders.hold)
            while True:
                await asyncio.sleep(LOOK_S)
                await self._look()
        finally:
            self._folders.release()

    @property
    def trouble(self) -> str | None:
        """Why the folder is not as it should be just now; None while all is well."""
        return together((self._refused.reason, self._unseen.reason))

    async def _look(self) -> None:
        try:
            if not await asyncio.to_thread(self._is_here):
                return
            lost, restored = await asyncio.to_thread(self._restore)
            runs = await self._events.restore()
        except RepositoryMoved:
            raise
        except OF_THE_DISK as error:
            # Without a file to open, nothing was seen: neither whole nor removed.
            blind = isinstance(error, OSError) and error.errno in NO_FILE_MORE
            (self._unseen if blind else self._refused).found(error)
            return
        self._unseen.over()
        self._refused.over()
        if runs:
            restored.append(f"events of {len(runs)} live run{'s' if len(runs) > 1 else ''}")
        for folder in lost:
            log.warning("%s/ was removed: what was in it is lost", self._layout.shown(folder))
        if restored:
            are = "was" if len(restored) == 1 else "were"
            log.warning("%s %s removed: written again from memory", ", ".join(restored), are)

    def _is_here(self) -> bool:
        """Whether the root is the folder that it was; it may be gone for a moment, but once."""
        root = self._layout.held
        if root is None or root.is_here():
            self._was_gone = False
            return True
        if self._was_gone or self._layout.root.exists():
            raise root.moved()
        self._was_gone = True
        return False

    def _restore(self) -> tuple[list[Path], list[str]]:
        """Have everything again that can be; the folders that are lost, the names of the rest."""
        restored = ["lock"] if self._lock.renew() else []
        lost = self._folders.lost()
        if self._folders.replaced():
            create_folders(self._layout)
            self._folders.hold()
        restored += self._engine.restore()
        if self._key_was_lost():
            restored.append("key")
        return lost, [f".swamp/{name}" for name in restored]

    def _key_was_lost(self) -> bool:
        """Remember the key, or put the one that is remembered back; whether that was needed."""
        try:
            self._key = read_bytes(self._layout.key)
        except FileNotFoundError:
            if self._key is None:
                return False
            place(self._layout, self._key)
            return True
        return False
