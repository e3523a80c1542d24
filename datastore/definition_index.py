"""What the index has of definitions: spares a start the parsing of those that have not changed.

It shares the index with the writer of records and holds their lock for a few milliseconds at most.
Nothing depends on it: what the disk refuses, or is broken, costs the next start some parsing.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Sequence

from datastore.index import DefinitionRow, Index

log = logging.getLogger(__name__)

ROWS_MOST = 100
"""Rows that are written in one go."""


class DefinitionIndex:
    """The rows of definitions in an open index. Blocks; any thread."""

    def __init__(self, index: Index, lock: threading.Lock) -> None:
        """`lock` is that of everybody who uses the index."""
        self._index = index
        self._lock = lock

    def rows(self) -> list[DefinitionRow]:
        """Every row; none where the index cannot be read."""
        try:
            with self._lock:
                return list(self._index.definitions())
        except sqlite3.Error as error:
            log.warning("all definitions are parsed, as the index cannot be read: %s", error)
            return []

    def update(self, puts: Sequence[DefinitionRow], removals: Sequence[str]) -> bool:
        """Write rows and remove others, by path; False if that is to be tried another time."""
        try:
            with self._lock:
                self._index.update_definitions(puts, removals)
        except (sqlite3.Error, OSError) as error:
            # The writer of records meets the same trouble, tells it and mends what is broken.
            log.info("definitions are not noted in the index for now: %s", error)
            return False
        return True
