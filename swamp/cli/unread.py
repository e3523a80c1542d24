"""Events of commands that go on for long: told to whoever reads them, dropped once nobody does.

The work of a server or a worker must not end, or end halfway, because a pipe was closed.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

from swamp.cli.console import Console
from swamp.stop_signals import let_go_of_terminal

UNREAD = 141
"""What a command ends with whose reader has gone: as a shell tells of a tool that SIGPIPE ended."""


class ToldUnread(BrokenPipeError):
    """The reader has gone, and stderr was told what follows for the run: that is an error."""


CLOSED = "Whoever read stdout has gone: nothing more is printed there"


def tell(console: Console, document: dict[str, Any], line: str | None) -> None:
    """As `Console.event`, but never an error."""
    try:
        console.event(document, line)
    except BrokenPipeError:
        # What is printed from here on goes nowhere, without any error.
        into_nowhere(sys.stdout.fileno())
        with contextlib.suppress(OSError):
            print(CLOSED, file=sys.stderr, flush=True)
    except OSError:
        let_go_of_terminal()
        # Say stdout is a file on a full disk: that line is lost, later ones may not be.
        return


def into_nowhere(number: int) -> None:
    """Have what is printed to a file from here on go nowhere, without any error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)
