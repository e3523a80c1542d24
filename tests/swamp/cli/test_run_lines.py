"""Whole outputs of a run, compared with what people are promised to see."""

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

from swamp.cli.run_lines import RunLines

START = datetime(2026, 10, 10, 14, 29, 6, 100_000, tzinfo=UTC)


class Script:
    """Events at times, and the lines that a terminal would show."""

    def __init__(self, **options: Any) -> None:
        self.passed_s = 0.0
        self.lines = RunLines(now=self.now, **options)
        self.shown: list[str] = []

    def now(self) -> datetime:
        return START + timedelta(seconds=self.passed_s)

    def at(self, passed_s: float, kind: str, **fields: Any) -> None:
        """The clock goes on second by second, then the event arrives."""
        self.wait_until(passed_s)
        at = self.now().isoformat().replace("+00:00", "Z")
        self.shown += self.lines.feed({"kind": kind, "at": at, **fields})

    def wait_until(self, passed_s: float) -> None:
        while self.passed_s + 1 <= passed_s:
            self.passed_s += 1
            self.shown += self.lines.tick()
        self.passed_s = passed_s

    @property
    def text(self) -> str:
        return "\n".join(self.shown)


def started(workflow: str = "long-b", job: str = "long-job", **options: Any) -> Script:
    script = Script(**options)
    script.at(0, "run_started", run="r", workflow=workflow, jobs=[job])
    script.at(0, "job_started", job=job)
    return script


def step(script: Script, name: str = "long-step", at: float = 0, job: str = "long-job") -> None:
    script.at(at, "step_started", job=job, step=name, model="long-step-b", method="execute")


def test_a_step_that_waits_and_succeeds() -> None:
    script = started()
    step(script)
    script.at(
        0.1, "step_queued", job="long-job", step="long-step", requirement="labels pool=worker"
    )
    script.at(11.8, "step_dispatched", job="long-job", step="long-step", worker="t1", dispatch="d")
    script.at(11.9, "step_completed", job="long-job", step="long-step", durationMs=11_900)
    script.at(11.9, "job_completed", job="long-job", status="succeeded", durationMs=11_920)
    script.at(11.9, "run_completed", status="succeeded", durationMs=11_930)
    assert (
        script.text
        == """\
   system │ Starting workflow long-b · 14:29:06 UTC

 long-job │ start 14:29:06 UTC
 long-job │ step long-step · long-step-b · execute · start 14:29:06 UTC
 long-job │ queued, waiting for worker matching labels pool=worker
 long-job │ Still running... [10s elapsed]
 long-job │ done long-step in 11.9s · 14:29:18 UTC
 long-job │ completed in 11.9s · 14:29:18 UTC

   system │ Completed workflow long-b succeeded in 11.9s · 14:29:18 UTC"""
    )


def test_a_step_that_nobody_took_in_time() -> None:
    failure = "Timed out waiting for a worker matching labels pool=worker to become available"
    script = started()
    step(script)
    script.at(
        0.1, "step_queued", job="long-job", step="long-step", requirement="labels pool=worker"
    )
    script.at(
        5, "step_failed", job="long-job", step="long-step", durationMs=5000, error=failure,
        reason="not_started", allowedFailure=False,
    )  # fmt: skip
    script.at(5, "job_completed", job="long-job", status="failed", durationMs=5000)
    script.at(5, "run_completed", status="failed", durationMs=5000, failure=failure)
    assert (
        script.text
        == """\
   system │ Starting workflow long-b · 14:29:06 UTC

 long-job │ start 14:29:06 UTC
 long-job │ step long-step · long-step-b · execute · start 14:29:06 UTC
 long-job │ queued, waiting for worker matching labels pool=worker
 long-job │ failed long-step in 5.0s · 14:29:11 UTC
 long-job │ failed · 14:29:11 UTC

   system │ Failed workflow long-b in 5.0s · 14:29:11 UTC

   system │ Timed out waiting for a worker matching labels pool=worker to become available"""
    )


def test_output_is_shown_by_whole_lines_and_without_control_characters() -> None:
    script = started("w", "job")
    step(script, "a", job="job")

    def output(text: str, stream: str = "stdout") -> None:
        script.at(0, "output", job="job", step="a", stream=stream, text=text)

    output("one\ntw")
    output("error text\n", "stderr")
    output("o\r\n  0%\r100%\r\n\x1b[31mred\x1b[0m \x1b]0;title\x07\x07bell\n")
    script.at(
        0, "output", job="job", step="a", stream="stdout",
        data=base64.b64encode(b"\xff\xfe no newline").decode(),
    )  # fmt: skip
    script.at(1, "step_completed", job="job", step="a", durationMs=1000)
    assert script.shown[4:] == [
        "    job │ a ▏ one",
        "    job │ a ▏ error text",
        "    job │ a ▏ two",
        "    job │ a ▏ 100%",
        "    job │ a ▏ red bell",
        "    job │ a ▏ \ufffd\ufffd no newline",
        "    job │ done a in 1.0s · 14:29:07 UTC",
    ]


def test_a_line_without_end_is_cut_and_loses_nothing() -> None:
    script = started("w", "job")
    for _ in range(5):
        script.at(0, "output", job="job", step="a", stream="stdout", text="x" * 4000)
    script.at(0, "step_completed", job="job", step="a", durationMs=0)
    said = [line.partition("▏ ")[2] for line in script.shown if "▏" in line]
    assert "".join(said) == "x" * 20_000
    assert max(len(line) for line in said) == 8192


def test_signs_of_life_come_only_from_jobs_that_go_on_and_are_silent() -> None:
    script = Script()
    script.at(0, "run_started", run="r", workflow="w", jobs=["one", "two"])
    script.at(0, "job_started", job="one")
    script.at(0, "job_started", job="two")
    step(script, "a", job="one")
    step(script, "b", job="two")
    script.at(3, "step_completed", job="two", step="b", durationMs=3000)
    script.at(7, "output", job="one", step="a", stream="stdout", text="x\n")
    script.wait_until(38)
    assert [line for line in script.shown if "Still" in line] == [
        "    one │ Still running... [17s elapsed]",
        "    one │ Still running... [27s elapsed]",
        "    one │ Still running... [37s elapsed]",
    ]


def test_a_reason_is_said_once_for_all_steps_of_the_job_and_again_when_it_changes() -> None:
    script = started("w", "job")
    for name in ("a", "b"):
        script.at(
            0, "step_queued", job="job", step=name, requirement="any worker",
            reason="0 of 0 workers fit",
        )  # fmt: skip
    for name in ("a", "b"):
        script.at(1, "step_waiting", job="job", step=name, reason="0 of 1 workers fit: 1 full")
    assert script.shown[3:] == [
        "    job │ queued, waiting for worker matching any worker",
        "    job │   0 of 0 workers fit",
        "    job │ queued, waiting for worker matching any worker",
        "    job │   0 of 1 workers fit: 1 full",
    ]


def test_why_a_step_could_not_even_wait_is_said_when_it_fails() -> None:
    """Regression: a placed step of a run without a server told its reason at the run's end."""
    script = Script()
    script.at(0, "run_started", run="r", workflow="w", jobs=["job"])
    script.at(0, "job_started", job="job")
    error = "needs a worker (labels pool=a): start `swamp serve`"
    script.at(
        0, "step_failed", job="job", step="s", durationMs=0, reason="not_started", error=error
    )
    assert script.shown[3:] == [
        "    job │ failed s in 0.0s · 14:29:06 UTC",
        f"    job │   {error}",
    ]


def test_why_a_step_that_waited_failed_before_it_ran_is_said_when_it_fails() -> None:
    """Regression: only a wait in vain was told all along; a secret that is not there was not."""
    script = started()
    step(script)
    script.at(0.1, "step_queued", job="long-job", step="long-step", requirement="any worker")
    error = "vault 'main' has no secret 'NOPE'"
    script.at(
        5, "step_failed", job="long-job", step="long-step", durationMs=5000, error=error,
        reason="not_started", allowedFailure=False,
    )  # fmt: skip
    assert script.shown[-2:] == [
        " long-job │ failed long-step in 5.0s · 14:29:11 UTC",
        f" long-job │   {error}",
    ]


def test_a_step_that_somebody_cancelled_by_its_file_says_which() -> None:
    script = Script()
    script.at(0, "run_started", run="r", workflow="w", jobs=["job"])
    script.at(0, "job_started", job="job")
    error = "step job/s was cancelled by datastore/desired/leases/r.job.s.1.yaml"
    script.at(1, "step_cancelled", job="job", step="s", durationMs=1000, error=error)
    assert script.shown[3:] == [
        "    job │ cancelled s after 1.0s · 14:29:07 UTC",
        f"    job │   {error}",
    ]


def test_every_other_end_of_a_step_job_and_run() -> None:
    script = Script()
    script.at(0, "run_started", run="r", workflow="w", jobs=["build", "publish"])
    script.at(0, "job_started", job="build")
    failed = {"job": "build", "durationMs": 1000, "reason": "failed"}
    script.at(1, "step_failed", step="a", error="exited with code 7", **failed)
    script.at(1, "step_failed", step="b", error="exited with code 1", allowedFailure=True, **failed)
    script.at(
        1, "step_failed", job="build", step="c", durationMs=0, reason="not_started",
        error="no model 'x'",
    )  # fmt: skip
    script.at(1, "step_skipped", job="build", step="d", reason="a did not succeed")
    script.at(2, "step_cancelled", job="build", step="e", durationMs=2000)
    script.at(2, "job_completed", job="build", status="cancelled", durationMs=2000)
    script.at(2, "job_skipped", job="publish", reason="build did not succeed")
    script.at(2, "run_completed", status="cancelled", durationMs=123_000, failure=None)
    assert script.shown[3:] == [
        "   build │ failed a in 1.0s · 14:29:07 UTC",
        "   build │   exited with code 7",
        "   build │ failed b in 1.0s (allowed) · 14:29:07 UTC",
        "   build │   exited with code 1",
        "   build │ failed c in 0.0s · 14:29:07 UTC",
        "   build │   no model 'x'",
        "   build │ skipped d: a did not succeed · 14:29:07 UTC",
        "   build │ cancelled e after 2.0s · 14:29:08 UTC",
        "   build │ cancelled · 14:29:08 UTC",
        " publish │ skipped: build did not succeed · 14:29:08 UTC",
        "",
        "  system │ Cancelled workflow w after 2m 03s · 14:29:08 UTC",
    ]


def test_joining_late_knows_names_and_widths_and_ignores_what_it_does_not_know() -> None:
    script = Script(workflow="w", jobs=("a-long-job-name",), verbose=True)
    script.at(0, "something_new", job="a-long-job-name", text="?")
    script.at(0, "step_dispatched", job="a-long-job-name", step="s", worker="t1", dispatch="d")
    script.at(1, "run_completed", status="succeeded", durationMs=1000)
    assert script.shown == [
        " a-long-job-name │ running s on t1",
        "",
        "          system │ Completed workflow w succeeded in 1.0s · 14:29:07 UTC",
    ]


def queued(script: Script, name: str, at: float = 0, **more: Any) -> None:
    fields = {"job": "job", "step": name, "requirement": "labels pool=w", "reason": "none fits"}
    script.at(at, "step_queued", **fields, **more)


def test_waiting_steps_are_named_where_several_are_under_way() -> None:
    script = started("w", "job")
    step(script, "a", job="job")
    step(script, "b", job="job")
    queued(script, "a", episode=1)
    queued(script, "b", episode=1)
    assert script.shown[5:] == [
        "    job │ a queued, waiting for worker matching labels pool=w",
        "    job │   none fits",
        "    job │ b queued, waiting for worker matching labels pool=w",
    ]


def test_a_second_execution_is_told_whether_it_waits_or_not() -> None:
    script = started("w", "job")
    step(script, "a", job="job")
    dispatched = {"job": "job", "step": "a", "dispatch": "d"}
    script.at(0, "step_dispatched", worker="w1", **dispatched)
    queued(script, "a", 1, episode=2, lost="worker w1 was lost (its process died)")
    lost = "worker w2 was lost"
    script.at(2, "step_dispatched", worker="w2", lost="worker w1 was lost", **dispatched)
    script.at(3, "step_dispatched", worker="w3", lost=lost, **dispatched)
    assert script.shown[4:] == [
        "    job │ a waits again: worker w1 was lost (its process died)",
        "    job │   none fits",
        "    job │ a runs again on w3: worker w2 was lost",
    ]


def test_of_thousands_that_wait_a_few_are_named_and_the_others_counted_rarely() -> None:
    script = started("w", "job")
    for number in range(4995):
        queued(script, f"s-{number}")
    script.wait_until(20)
    assert script.shown[3:] == [
        "    job │ queued, waiting for worker matching labels pool=w",
        "    job │   none fits",
        *["    job │ queued, waiting for worker matching labels pool=w"] * 4,
        "    job │ … and 4,990 more wait",
    ]
    for number in range(4000):
        script.at(20, "step_dispatched", job="job", step=f"s-{number}", worker="w", dispatch="d")
    script.wait_until(70)
    counts = [line for line in script.shown if "more wait" in line]
    assert counts == ["    job │ … and 4,990 more wait", "    job │ … and 995 more wait"]


def test_who_waited_in_vain_is_told_why_at_once_where_the_run_goes_on() -> None:
    script = started("w", "job")
    step(script, "a", job="job")
    step(script, "b", job="job")
    queued(script, "a", episode=1)
    why = "Timed out waiting for a worker matching labels pool=w to become available: waited 5s"
    script.at(5, "step_failed", job="job", step="a", error=why, durationMs=5000)
    assert script.shown[-2:] == [
        "    job │ failed a in 5.0s · 14:29:11 UTC",
        f"    job │   {why}",
    ]


def test_what_nobody_timed_is_told_without_a_duration() -> None:
    script = started("w", "job")
    for kind in ("step_completed", "step_failed", "step_cancelled"):
        script.at(1, kind, job="job", step="a", durationMs=None)
    script.at(1, "job_completed", job="job", status="succeeded")
    script.at(1, "run_completed", status="failed", durationMs=None, failure="why")
    assert script.shown[3:] == [
        "    job │ done a · 14:29:07 UTC",
        "    job │ failed a · 14:29:07 UTC",
        "    job │ cancelled a · 14:29:07 UTC",
        "    job │ completed · 14:29:07 UTC",
        "",
        " system │ Failed workflow w · 14:29:07 UTC",
        "",
        " system │ why",
    ]
