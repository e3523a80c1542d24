"""Following a run from a terminal: lines as things happen, and what Ctrl-C means.

A run of a server: the first Ctrl-C asks (or does what `--on-interrupt` says); the second one leaves
at once, and the run goes on. A run of this process: the first one cancels it, the second one stops.
SIGTERM, which is what a CI system sends, means the same, and so does the first SIGHUP, the end of a
terminal; nobody is asked then.
"""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import typer

from datastore.errors import SwampError
from swamp.cli.colors import paint
from swamp.cli.console import Console
from swamp.cli.silence import Silence
from swamp.cli.unread import ToldUnread
from swamp.stop_signals import hang_up_signals, let_go_of_terminal

if TYPE_CHECKING:
    from types import FrameType

    from swamp.cli.run_lines import RunLines
    from swamp.client import Client

Failed = Callable[[], BaseException | None]

TICK_S = 1.0
INTERRUPTED = 130
UNREAD = "The output cannot be written any more"


class Signalled(KeyboardInterrupt):
    """SIGTERM or SIGHUP."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.signal = signal.Signals(number)


def code_of(interrupt: KeyboardInterrupt) -> int:
    """What a command ends with that was interrupted so."""
    return 128 + interrupt.signal if isinstance(interrupt, Signalled) else INTERRUPTED


class OnInterrupt(StrEnum):
    """What the first Ctrl-C does."""

    ASK = "ask"
    CANCEL = "cancel"
    DETACH = "detach"


@dataclass(frozen=True, slots=True)
class Watch:
    """Which run to follow, from which event on, and what an interrupt does."""

    client: Client
    run: str
    after: int = 0
    on_interrupt: OnInterrupt = OnInterrupt.ASK
    server: str | None = None
    is_here: bool = False
    """Whether the run ends with this process: nobody is there to leave it to."""
    failed: Failed = lambda: None
    """What has ended that process's part in the run before its end, if anything has."""

    @property
    def left(self) -> str:
        """What is said when the command ends before the run does."""
        if self.is_here:
            return "Stopped before the run had ended: the next `swamp serve` here ends it."
        return f"The run goes on. {self.again}"

    @property
    def again(self) -> str:
        """How to watch the run later."""
        suffix = f" --server {self.server}" if self.server else ""
        return f"Watch it: swamp run watch {self.run}{suffix}"


def follow(
    console: Console,
    watch: Watch,
    lines: RunLines,
    interrupted: KeyboardInterrupt | None = None,
) -> None:
    """Show the run to its end. Ends the command with 1 unless it succeeded.

    As `code_of` says if it was left, or an interrupt has cancelled a run of this process; one that
    came before is `interrupted`.
    """
    from swamp.client import RunLeft, Unreachable

    try:
        with signals_interrupt():
            _follow(console, watch, lines, interrupted)
    except Unreachable as lost:
        if watch.is_here:
            raise
        raise RunLeft(f"{lost}. The run {watch.run} lives on. {watch.again}", watch.run) from lost


def _follow(
    console: Console, watch: Watch, lines: RunLines, interrupted: KeyboardInterrupt | None
) -> None:
    # A server in this very process ends no stream for a while: there is nothing to remark on.
    arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
    receiver = _receiver(watch, arrived, Console(quiet=True) if watch.is_here else console)
    unsaid: OSError | None = None
    if interrupted is not None:
        _cancel(watch, _name_of(interrupted))
    while True:
        try:
            if receiver.ident is None:
                receiver.start()
            status = _show(console, arrived, lines, watch)
            break
        except KeyboardInterrupt as interrupt:
            may_ask = not isinstance(interrupt, Signalled)
            if interrupted is not None or not _wants_cancel(watch.on_interrupt, may_ask=may_ask):
                raise _leaves(watch, interrupt) from None
            interrupted = interrupt
            try:
                _cancel(watch, _name_of(interrupt))
            except KeyboardInterrupt as again:
                raise _leaves(watch, again) from None
        except OSError as error:
            if not watch.is_here:
                if interrupted is None and _say_unread(watch):
                    raise _told(error) from None
                raise
            # As if it were interrupted: nobody else can end the run in order.
            unsaid = error
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if interrupted is None:
                _cancel_unseen(watch)
            receiver.join()
            status = str(watch.client.get(f"/api/v1/runs/{watch.run}")["status"])
            break
    if unsaid is not None and interrupted is None:
        raise _told(unsaid)
    if console.json:
        console.show(watch.client.get(f"/api/v1/runs/{watch.run}"), [])
    if interrupted is not None and watch.is_here and status == "cancelled":
        raise typer.Exit(code_of(interrupted))
    if status != "succeeded":
        raise typer.Exit(1)


def _name_of(interrupt: KeyboardInterrupt) -> str:
    return interrupt.signal.name if isinstance(interrupt, Signalled) else "Ctrl-C"


def _receiver(watch: Watch, arrived: queue.SimpleQueue[Any], console: Console) -> threading.Thread:
    """Hands over the run's events, and at the end the error if one ended them.

    A thread of its own waits for the server, so that this one can show signs of life.
    """

    def unless_unread(tell: Callable[[str], None]) -> Callable[[str], None]:
        def told(line: str) -> None:
            # Whoever waits for the events must not miss them for a remark that nobody reads.
            with suppress(OSError):
                tell(line)

        return told

    def receive() -> None:
        try:
            told = (unless_unread(console.note), unless_unread(console.detail))
            for event in watch.client.events(watch.run, watch.after, *told):
                arrived.put(event)
        except Exception as error:
            # Whichever it is: nothing more arrives.
            arrived.put(error)

    return threading.Thread(target=receive, name="events", daemon=True)


def _show(console: Console, arrived: queue.SimpleQueue[Any], lines: RunLines, watch: Watch) -> str:
    """Print until the run ends; its final status."""
    for event in _events(console, arrived, lines, watch):
        shown = lines.feed(event)
        is_last = event["kind"] == "run_completed"
        if not console.json and (is_last or not console.quiet):
            painted = map(paint, shown) if console.paints else shown
            console.print(painted, more=not (is_last or arrived.empty()))
        if is_last:
            return str(event["status"])
    raise AssertionError("the events of a run end with run_completed or an error")


def _events(
    console: Console, arrived: queue.SimpleQueue[Any], lines: RunLines, watch: Watch
) -> Iterator[dict[str, Any]]:
    silence = Silence(watch.client, console)
    while True:
        try:
            item = arrived.get(timeout=TICK_S)
        except queue.Empty:
            error = watch.failed()
            if error is not None:
                # Nobody is left who could tell more.
                raise error from None
            if not (console.json or console.quiet):
                console.print(lines.tick())
            silence.goes_on()
            continue
        silence.broken()
        if isinstance(item, Exception):
            raise item
        yield item


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Meanwhile SIGTERM and SIGHUP raise Signalled.

    The second SIGHUP means no more than the first: a shell whose terminal is closed passes that on,
    and the kernel sends another.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            signal.signal(number, _hung_up)
            let_go_of_terminal()
        raise Signalled(number)

    hang_ups = [one for one in hang_up_signals() if signal.getsignal(one) is not _hung_up]
    numbers = (signal.SIGTERM, *hang_ups)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _hung_up(number: int, frame: FrameType | None) -> None:
    """SIGHUP was heard before. Unlike one that is ignored, it does not stay so in steps."""


def _wants_cancel(choice: OnInterrupt, *, may_ask: bool) -> bool:
    if choice is not OnInterrupt.ASK:
        return choice is OnInterrupt.CANCEL
    if not (may_ask and sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print("\nCancel the run? [y/N] ", end="", file=sys.stderr, flush=True)
    try:
        return sys.stdin.readline().strip().lower() in ("y", "yes")
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return False


def _leaves(watch: Watch, interrupt: KeyboardInterrupt) -> typer.Exit:
    _say(watch.left)
    return typer.Exit(code_of(interrupt))


def _cancel(watch: Watch, by: str) -> None:
    watch.client.post(f"/api/v1/runs/{watch.run}/cancel", {"reason": f"interrupted by {by}"})
    again = "SIGTERM" if by == "SIGHUP" else f"{by} again"
    _say(f"Cancelling the run. {again} leaves at once.")


def _cancel_unseen(watch: Watch) -> None:
    reason = "its output could not be written"
    watch.client.post(f"/api/v1/runs/{watch.run}/cancel", {"reason": reason})
    _say(f"{UNREAD}: cancelling the run.")


def _say_unread(watch: Watch) -> bool:
    """Whether there was something to say."""
    with suppress(SwampError):
        status = watch.client.get(f"/api/v1/runs/{watch.run}")["status"]
        if status == "running":
            _say(f"{UNREAD}. {watch.left}")
            return True
    return False


def _told(error: OSError) -> OSError:
    """The error for a command whose last words are on stderr."""
    return ToldUnread(*error.args) if isinstance(error, BrokenPipeError) else error


def _say(line: str) -> None:
    # Whoever reads it may have gone; the command has to end in order all the same.
    with suppress(OSError):
        print(line, file=sys.stderr, flush=True)
