"""Telling people what was put back in `observed/`: at once, and of very many files in few lines."""

from __future__ import annotations

import asyncio
import logging

from datastore.edit_lines import LINES_MOST, put_back_lines
from datastore.observed import RescanReport

GATHER_S = 10.0
"""How long what comes after a line of many files is gathered into the next one."""


class PutBackTold:
    """Tells in `log` what it is given, until `tell_for_ever` is cancelled."""

    def __init__(self, log: logging.Logger, *, gather_s: float = GATHER_S) -> None:
        self._log = log
        self._gather_s = gather_s
        self._held = RescanReport()
        self._more = asyncio.Event()

    def add(self, report: RescanReport) -> None:
        """Tell this, or soon."""
        held = self._held
        self._held = RescanReport(
            _each_once(held.put_back, report.put_back),
            _each_once(held.restored, report.restored),
            _each_once(held.unknown, report.unknown),
        )
        self._more.set()

    async def tell_for_ever(self) -> None:
        """A folder that is removed is found a part at a time: that is no line for each part."""
        try:
            while True:
                await self._more.wait()
                self._more.clear()
                if self._tell() > LINES_MOST:
                    await asyncio.sleep(self._gather_s)
        finally:
            self._tell()

    def _tell(self) -> int:
        """Of how many files it told."""
        report, self._held = self._held, RescanReport()
        for line in put_back_lines(report):
            self._log.warning("%s", line)
        return len(report.put_back) + len(report.restored) + len(report.unknown)


def _each_once(*paths: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(path for some in paths for path in some))
