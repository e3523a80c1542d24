"""What the HTTP API tells about and acts on: the parts of a running orchestrator."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from controllers.manager import Manager
from datastore.clock import Clock
from datastore.definitions.catalog import Catalog
from datastore.errors import InvalidFile
from datastore.events import EventLog
from datastore.layout import Layout
from datastore.meter import Instrument
from datastore.record import Kind
from datastore.store import Store
from datastore.trouble import Trouble, together
from swamp.protocol import FromWorker
from swamp.serve.aside import Aside
from swamp.serve.data_plane import DataPlane
from swamp.serve.death_reports import DeathReports

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Served:
    """Handed to whoever answers requests."""

    layout: Layout
    store: Store
    clock: Clock
    manager: Manager
    events: EventLog
    catalog: Catalog
    data: DataPlane
    deaths: DeathReports
    new_run: Callable[[], str]
    problems: Callable[[], list[InvalidFile]]
    look_at_desired: Callable[[Kind[Any, Any], str], Awaitable[None]]
    """Has one desired file looked at now."""
    silent_s: Callable[[str], float | None] = lambda worker: None
    """How long nothing has come from a connected worker, seconds; None if it is not connected."""
    files_trouble: Callable[[], str | None] = lambda: None
    """What else the disk refuses just now, the worst first."""
    measured: Callable[[], list[Instrument]] = list
    """What the server and its parts have counted and timed."""
    received: Callable[[FromWorker], None] = lambda frame: None
    """Told of each frame that comes from a worker."""
    own_socket: Trouble = field(
        default_factory=lambda: Trouble("serve.sock cannot be listened on", log)
    )
    """What keeps the server from the repository's socket just now."""
    only_run: str | None = None
    """The one run of a process that takes on no other."""

    @property
    def degraded(self) -> str | None:
        """All that is not well just now, in one line: what the journal is refused is the worst."""
        return together((self.store.trouble, self.files_trouble(), self.own_socket.reason))

    @cached_property
    def aside(self) -> Aside:
        """Makes the large answers: one for all that asks this server."""
        return Aside(self.store)
