"""What people ask for: `datastore/desired/<kind>/<name>.yaml`, sparse and commented."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class DesiredFile:
    """A desired file that parsed and validated: the fields it sets, and a digest of its bytes."""

    spec: dict[str, Any]
    digest: str
