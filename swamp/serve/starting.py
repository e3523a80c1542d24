"""A new run, from what a client asked for: checked, its definitions kept, created.

Nothing is created for a request that is wrong in any part.
"""

from __future__ import annotations

import asyncio
from typing import Any

from datastore.definitions.inputs import InputError
from datastore.definitions.workflow import resolve_inputs
from datastore.errors import InvalidFile, NotFound
from datastore.kinds import Run, RunSpec
from swamp.serve.served import ApiError, Served

__all__ = ["start_run"]
