"""The signals that ask a command to stop, in order."""

from __future__ import annotations

import os
import signal
from contextlib import suppress


def hang_up_signals() -> tuple[signal.Signals, ...]:
    """SIGHUP, unless it is ignored since the start: `nohup` means that the command goes on."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return () if ignored else (signal.SIGHUP,)


def stop_signals() -> tuple[signal.Signals, ...]:
    """All of them."""
    return (signal.SIGTERM, signal.SIGINT, *hang_up_signals())


def let_go_of_terminal() -> None:
    """Have what is printed go nowhere where that was a terminal which is gone.

    An error of the last words must not keep a command from stopping in order.
    """
    for number in (1, 2):
        try:
            os.write(number, b"")
        except OSError:
            with suppress(OSError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, number)
                os.close(nowhere)
