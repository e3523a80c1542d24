"""Log lines of a long-running command: for people on stderr with the time of day in front, with
--json as events on stdout.
"""

from __future__ import annotations

import logging

from swamp.cli.console import Console
from swamp.cli.unread import tell

TIME_OF_DAY = "%H:%M:%S"


class _AsEvents(logging.Handler):
    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        kind = "error" if record.levelno >= logging.ERROR else "warning"
        tell(self._console, {"kind": kind, "message": record.getMessage()}, None)


def log_to(console: Console) -> None:
    """Have warnings and errors printed the way this command prints.

    What finds no room where they go (a log on the full disk) is left out: no traceback instead.
    """
    logging.raiseExceptions = False
    if console.json:
        logging.getLogger().addHandler(_AsEvents(console))
    else:
        # Nothing happens after --verbose, which has its own form.
        logging.basicConfig(format="%(asctime)s %(message)s", datefmt=TIME_OF_DAY)
