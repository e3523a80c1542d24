"""A run's events as lines for people. Pure: events and the time in, lines out.

The shape is fixed: a label (job, or `system`) right-aligned before a bar, times in UTC.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from swamp.cli.durations import show_duration
from swamp.cli.plain_text import is_plain, plain

SYSTEM = "system"
QUIET_S = 10.0
"""A job that says nothing for so long is reported as still running."""

IN_VAIN = "Timed out waiting for a worker"
"""How the error of a step begins for which no worker came in time."""

QUEUED_SHOWN = 5
"""So many waiting steps of a job are named; the others are counted."""

COUNT_AFTER_S, COUNT_EVERY_S = 1.0, 30.0
"""How soon the others are counted at first, and how rarely their count is told again."""

_LINE_MAX = 8192

Event = dict[str, Any]


@dataclass(slots=True)
class _JobState:
    """A job that has started: since when, which steps go on, when it last said something."""

    started_at: datetime
    said_at: datetime
    unfinished: set[str] = field(default_factory=set)
    reason: str | None = None
    waiting: dict[str, bool] = field(default_factory=dict)
    """The steps that wait for a worker, and whether a line said so."""
    count_at: datetime | None = None
    """When to count those that no line was about."""
    counted: int = 0
    again: set[str] = field(default_factory=set)
    """Steps that were said to wait again."""


class RunLines:
    """Turns the events of one run into lines, in order, each at once."""

    def __init__(
        self,
        workflow: str = "",
        jobs: tuple[str, ...] = (),
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        verbose: bool = False,
    ) -> None:
        """`workflow` and `jobs` matter where the first event of the run will not be seen."""
        self._workflow = workflow
        self._now = now
        self._verbose = verbose
        self._width = max(len(label) for label in (SYSTEM, *jobs))
        self._jobs: dict[str, _JobState] = {}
        self._partial: dict[tuple[str, str, str], str] = {}
        self._has_failed = False

    def feed(self, event: Event) -> list[str]:
        """The lines of one event; none for a kind that needs none."""
        show = getattr(self, f"_{event['kind']}", None)
        lines: list[str] = [] if show is None else show(event)
        job = self._jobs.get(event.get("job", ""))
        if job is not None:
            lines += self._count(event["job"], job)
        if job is not None and lines:
            job.said_at = self._now()
        return lines

    def tick(self) -> list[str]:
        """A sign of life for each job that goes on and has said nothing for ten seconds."""
        now = self._now()
        lines = []
        for name, job in self._jobs.items():
            counted = self._count(name, job)
            if counted:
                job.said_at = now
                lines += counted
            elif job.unfinished and (now - job.said_at).total_seconds() >= QUIET_S:
                job.said_at = now
                elapsed = max(0, int((now - job.started_at).total_seconds()))
                lines.append(self._line(name, f"Still running... [{elapsed}s elapsed]"))
        return lines

    # -- the run ---------------------------------------------------------------------------------

    def _run_started(self, event: Event) -> list[str]:
        self._workflow = event["workflow"]
        self._width = max(self._width, *(len(job) for job in event["jobs"]), 0)
        return [self._line(SYSTEM, f"Starting workflow {self._workflow} · {_time(event)}"), ""]

    def _run_completed(self, event: Event) -> list[str]:
        ends = {
            "succeeded": f"Completed workflow {self._workflow} succeeded{_took(event)}",
            "failed": f"Failed workflow {self._workflow}{_took(event)}",
            "cancelled": f"Cancelled workflow {self._workflow}{_took(event, 'after')}",
        }
        lines = ["", self._line(SYSTEM, f"{ends[event['status']]} · {_time(event)}")]
        if event.get("failure"):
            lines += ["", *(self._line(SYSTEM, text) for text in event["failure"].splitlines())]
        return lines

    # -- jobs ------------------------------------------------------------------------------------

    def _job_started(self, event: Event) -> list[str]:
        self._job(event)
        return [self._of(event, f"start {_time(event)}")]

    def _job_skipped(self, event: Event) -> list[str]:
        return [self._of(event, f"skipped{_because(event)} · {_time(event)}")]

    def _job_completed(self, event: Event) -> list[str]:
        self._jobs.pop(event["job"], None)
        if event["status"] == "succeeded":
            return [self._of(event, f"completed{_took(event)} · {_time(event)}")]
        return [self._of(event, f"{event['status']} · {_time(event)}")]

    # -- steps -----------------------------------------------------------------------------------

    def _step_started(self, event: Event) -> list[str]:
        self._job(event).unfinished.add(event["step"])
        parts = ("step " + event["step"], event.get("model"), event.get("method"))
        what = " · ".join(part for part in parts if part)
        return [self._of(event, f"{what} · start {_time(event)}")]

    def _step_queued(self, event: Event) -> list[str]:
        job, step = self._job(event), event["step"]
        lines = []
        if event.get("episode", 1) > 1:
            job.again.add(step)
            job.waiting[step] = True
            lines = [self._of(event, f"{step} waits again{_after(event)}")]
        elif len(job.waiting) < QUEUED_SHOWN:
            job.waiting[step] = True
            # Where a job has one step under way it need not be named.
            named = f"{step} " if len(job.unfinished | {step}) > 1 else ""
            text = f"{named}queued, waiting for worker matching {event['requirement']}"
            lines = [self._of(event, text)]
        else:
            job.waiting[step] = False
            job.count_at = job.count_at or self._now() + timedelta(seconds=COUNT_AFTER_S)
        return [*lines, *self._step_waiting(event)]

    def _count(self, name: str, job: _JobState) -> list[str]:
        """How many more wait than were named, if that is due and new."""
        now = self._now()
        if job.count_at is None or now < job.count_at:
            return []
        job.count_at = now + timedelta(seconds=COUNT_EVERY_S)
        before, job.counted = job.counted, sum(not said for said in job.waiting.values())
        more = job.counted
        if more in (0, before):
            return []
        return [self._line(name, f"… and {more:,} more wait{'s' if more == 1 else ''}")]

    def _step_waiting(self, event: Event) -> list[str]:
        # Said once for all steps of the job that wait for the same reason.
        job, reason = self._job(event), event.get("reason")
        if not reason or reason == job.reason:
            return []
        job.reason = reason
        return [self._of(event, f"  {reason}")]

    def _step_dispatched(self, event: Event) -> list[str]:
        job, step = self._job(event), event["step"]
        job.reason = None
        job.waiting.pop(step, None)
        was_told = step in job.again
        job.again.discard(step)
        if "lost" in event and not was_told:
            # It found a worker at once: nothing has told yet that it runs a second time.
            text = f"{step} runs again on {event['worker']}{_after(event)}"
            return [self._of(event, text)]
        if not self._verbose:
            return []
        return [self._of(event, f"running {step} on {event['worker']}")]

    def _step_completed(self, event: Event) -> list[str]:
        return self._ended(event, f"done {event['step']}{_took(event)}")

    def _step_failed(self, event: Event) -> list[str]:
        allowed = " (allowed)" if event.get("allowedFailure") else ""
        waited = event["step"] in self._job(event).waiting
        lines = self._ended(event, f"failed {event['step']}{_took(event)}{allowed}")
        # The first failure becomes the run's and is told at its end. Why a step waited was said
        # all along, so where it waited in vain it is not said twice, if that end is near.
        goes_on = any(job.unfinished for job in self._jobs.values())
        is_runs = not (self._has_failed or allowed)
        self._has_failed |= is_runs
        error = event.get("error") or ""
        in_vain = waited and error.startswith(IN_VAIN)
        if goes_on or not (is_runs and in_vain):
            lines += [self._of(event, f"  {text}") for text in error.splitlines()]
        return lines

    def _step_skipped(self, event: Event) -> list[str]:
        return self._ended(event, f"skipped {event['step']}{_because(event)}")

    def _step_cancelled(self, event: Event) -> list[str]:
        lines = self._ended(event, f"cancelled {event['step']}{_took(event, 'after')}")
        if event.get("error"):
            # Told only where the run itself goes on.
            lines.append(self._of(event, f"  {event['error']}"))
        return lines

    def _ended(self, event: Event, text: str) -> list[str]:
        job = self._job(event)
        job.unfinished.discard(event["step"])
        job.waiting.pop(event["step"], None)
        left = [key for key in self._partial if key[:2] == (event["job"], event["step"])]
        lines = self._said(event, [self._partial.pop(key) for key in left])
        return [*lines, self._of(event, f"{text} · {_time(event)}")]

    # -- output ----------------------------------------------------------------------------------

    def _output(self, event: Event) -> list[str]:
        key = (event["job"], event["step"], event.get("stream", "stdout"))
        *whole, rest = (self._partial.pop(key, "") + _text(event)).split("\n")
        while len(rest) > _LINE_MAX:
            whole.append(rest[:_LINE_MAX])
            rest = rest[_LINE_MAX:]
        if rest:
            self._partial[key] = rest
        return self._said(event, whole)

    def _said(self, event: Event, lines: list[str]) -> list[str]:
        # A piece of output may have ten thousand lines: what they share is made and looked at once.
        before = self._of(event, f"{event['step']} ▏ ")
        if not is_plain("\n".join(lines)):
            # What a terminal would show of a line that was drawn over with carriage returns.
            lines = [plain(line.rstrip("\r").rpartition("\r")[2]) for line in lines]
        return [f"{before}{line}".rstrip() for line in lines]

    # -- parts -----------------------------------------------------------------------------------

    def _job(self, event: Event) -> _JobState:
        at = datetime.fromisoformat(event["at"])
        return self._jobs.setdefault(event["job"], _JobState(at, self._now()))

    def _of(self, event: Event, text: str) -> str:
        return self._line(event["job"], text)

    def _line(self, label: str, text: str) -> str:
        return f" {label:>{self._width}} │ {plain(text)}"


def _time(event: Event) -> str:
    return f"{datetime.fromisoformat(event['at']).astimezone(UTC):%H:%M:%S} UTC"


def _took(event: Event, word: str = "in") -> str:
    """` in 1.5s`; nothing where nobody knows how long it took."""
    took_ms = event.get("durationMs")
    return "" if took_ms is None else f" {word} {show_duration(took_ms / 1000)}"


def _after(event: Event) -> str:
    return f": {event['lost']}" if event.get("lost") else ""


def _because(event: Event) -> str:
    return f": {event['reason']}" if event.get("reason") else ""


def _text(event: Event) -> str:
    if "text" in event:
        return str(event["text"])
    return base64.b64decode(event.get("data", "")).decode(errors="replace")
