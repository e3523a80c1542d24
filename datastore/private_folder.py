"""`.swamp/` while the server runs: what is removed there is noticed, told, and written again.

`git clean -fdx` removes the folder like everything else that git ignores. Journal, index and the
events of live runs are restored from memory, and the lock is taken again before anything else, so
that no second server finds the repository free.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from datastore.engine import OpenedEngine
from datastore.errors import RepositoryLocked
from datastore.events import EventLog
from datastore.layout import Layout, create_folders
from datastore.lock import RepositoryLock

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
        self._told = ""

    async def keep(self) -> None:
        """Look again and again until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                emptied = await asyncio.to_thread(self._emptied)
                restored = await asyncio.to_thread(self._restore)
                runs = await self._events.restore()
            except (OSError, RepositoryLocked) as error:
                self._tell_trouble(str(error))
                continue
            if runs:
                restored.append(f"events of {len(runs)} live run{'s' if len(runs) > 1 else ''}")
            if restored:
                log.warning("%s was removed: written again from memory", ", ".join(restored))
            for folder in emptied:
                log.warning("%s was removed with what was in it", self._layout.shown(folder))
            self._told = ""

    def _emptied(self) -> list[Path]:
        """Folders that are gone; nothing holds what was in them."""
        folders = (self._layout.events, self._layout.logs, self._layout.data)
        return [folder for folder in folders if not folder.is_dir()]

    def _restore(self) -> list[str]:
        """Have everything again that can be; the names of what was gone."""
        restored = ["lock"] if self._lock.renew() else []
        create_folders(self._layout)
        return [f".swamp/{name}" for name in (*restored, *self._engine.restore())]

    def _tell_trouble(self, trouble: str) -> None:
        if trouble != self._told:
            log.error("what was removed from .swamp/ cannot be restored yet: %s", trouble)
        self._told = trouble
