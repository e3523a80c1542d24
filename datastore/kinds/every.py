"""`KINDS`: every kind by its folder."""

from __future__ import annotations

from typing import Any

from datastore.kinds.access import ACCESS
from datastore.kinds.dispatch import LEASES, PENDING
from datastore.kinds.fleet import TOKENS, WORKERS
from datastore.kinds.pause import PAUSES
from datastore.kinds.run import RUNS, STEPS
from datastore.record import Kind

KINDS: dict[str, Kind[Any, Any]] = {
    kind.folder: kind for kind in (WORKERS, TOKENS, ACCESS, PAUSES, PENDING, LEASES, RUNS, STEPS)
}

STARTS_NO_WORK = frozenset({TOKENS.folder, ACCESS.folder, PAUSES.folder})
"""Kinds whose records stay valid when neither journal nor index knows them (decision 007)."""
