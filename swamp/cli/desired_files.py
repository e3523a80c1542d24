"""A hint under lists: whose desired file has gone while what it asked for stays in force."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

STAYS = "what it asked for last stays in force"


def missing_files(views: Iterable[dict[str, Any]]) -> list[str]:
    """One line that names all of them; none where every file is there."""
    names = [str(view["name"]) for view in views if view.get("desiredFile") == "missing"]
    if not names:
        return []
    return [f"File missing in datastore/desired/ for {', '.join(names)}: {STAYS}"]
