"""Why files of `observed/` and `history/` cannot be written: told by reason, not by file or round.

What is refused may be more than one round takes: a round that goes well says nothing of the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from datastore.sqlite_journal import HISTORY
from datastore.trouble import together

Key = tuple[str, str]

NO_INDEX = "the index cannot be written"


class FilesTrouble:
    """Which files wait for the disk, and why; `reason` is None while all is well."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._why: dict[Key, str] = {}
        self._told: tuple[str, ...] = ()
        self.reason: str | None = None
        """May be read by any thread."""

    def tried(self, keys: Iterable[Key], refused: Mapping[Key, str]) -> None:
        """All of these were tried, and some refused: what is new of that is told, and its end."""
        for key in keys:
            self._why.pop(key, None)
        self._why.update(refused)
        now = tuple(sorted(set(self._why.values()), key=_order))
        for reason in now:
            if reason not in self._told:
                self._log.error("%s; nothing is lost, it is tried again until it succeeds", reason)
        if self._told and not now:
            self._log.warning("the files of datastore/ can be written again")
        elif now:
            for reason in self._told:
                if reason not in now:
                    self._log.warning("no longer so: %s", reason)
        self._told, self.reason = now, together(now)


def refused_file(key: Key, why: object) -> str:
    """The reason of one file, the same for all of its tree."""
    tree = "history" if key[0] == HISTORY else "observed"
    return f"the files of datastore/{tree}/ cannot be written: {why}"


def refused_index(why: object) -> str:
    """The reason of all files of a round whose rows the index does not take."""
    return f"{NO_INDEX}: {why}"


def _order(reason: str) -> tuple[bool, bool, str]:
    """The index first, which keeps rows in the journal for all files; history is for people."""
    return not reason.startswith(NO_INDEX), "datastore/history/" in reason, reason
