"""What the disk refuses a part of the server that goes on for ever: told once, and tried again.

Nothing that such a part does is worth ending the server for: records are in memory and journal.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from datastore.errors import DatastoreError

OF_THE_DISK = (OSError, sqlite3.Error, DatastoreError)
"""What the disk, or what stands on it, may refuse with."""


class Trouble:
    """Why something cannot be done just now; `reason` is None while all is well."""

    def __init__(self, what: str, log: logging.Logger) -> None:
        """`what` begins the line, say "folders cannot be made"."""
        self._what = what
        self._log = log
        self.reason: str | None = None

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Do something that the disk may refuse: that is told once, and ends here."""
        try:
            yield
        except OF_THE_DISK as error:
            self.found(error)
        else:
            self.over()

    def found(self, error: Exception) -> None:
        """It was refused; a line unless the last one said the same."""
        reason = f"{self._what}: {shown(error)}"
        if reason != self.reason:
            self._log.error("%s; it is tried again until it succeeds", reason)
        self.reason = reason

    def over(self) -> None:
        """It was done."""
        if self.reason is not None:
            self._log.warning("no longer so: %s", self.reason)
        self.reason = None


class Troubled(Protocol):
    """A part of the server that the disk may refuse something."""

    @property
    def trouble(self) -> str | None:
        """Why it cannot do what it should just now; None while all is well."""
        ...


def trouble_of(*parts: Troubled) -> str | None:
    """All that is wrong with these; name those first that hold up work."""
    return together(part.trouble for part in parts)


def together(reasons: Iterable[str | None]) -> str | None:
    """All that is wrong, in one line and in that order; None if nothing is."""
    return "; ".join(dict.fromkeys(filter(None, reasons))) or None


def shown(error: Exception) -> str:
    """The error in one line, an error of a file as `path: why`."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split())
