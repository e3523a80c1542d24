"""A lock that was removed below a server, and taken by another process before it was noticed."""

from __future__ import annotations

import shutil
import signal

from harness import Repo, free_port


def test_a_server_whose_lock_another_has_taken_ends(repo: Repo) -> None:
    """Regression: both served one repository for ever, with one journal and one socket in turns,
    and a waiting step ran under either."""
    repo.shell_workflow("w", {"step": f"echo done >> {repo.base / 'ran'}"}, "queueTimeout: 0\n")
    stalled = repo.serve()
    run = repo.start("workflow", "run", "w", "--json")
    repo.until(lambda: repo.json("worker", "queue") != [], "the waiting step")
    run.kill()
    run.wait()
    (name,) = repo.records("runs")
    stalled.process.send_signal(signal.SIGSTOP)
    (repo.path / ".swamp" / "lock").unlink()
    repo.port = free_port()
    other = repo.serve()
    stalled.process.send_signal(signal.SIGCONT)
    assert stalled.wait() == 1
    assert f"is served by pid {other.process.pid}" in stalled.log()

    repo.worker("w1", "--label", "pool=worker")
    repo.until(lambda: repo.json("run", "show", name)["status"] == "succeeded", "its end")
    assert (repo.base / "ran").read_text() == "done\n"
    other.terminate(signal.SIGKILL)
    repo.serve()
    assert repo.json("run", "show", name)["status"] == "succeeded"


def test_a_server_whose_lock_another_held_meanwhile_ends(repo: Repo) -> None:
    """Regression: it went on, and never knew the token that the command had made."""
    stalled = repo.serve()
    stalled.process.send_signal(signal.SIGSTOP)
    shutil.rmtree(repo.path / ".swamp")
    repo.token("made-meanwhile")
    stalled.process.send_signal(signal.SIGCONT)
    assert stalled.wait() == 1
    assert "another held it meanwhile" in stalled.log()
    repo.serve()
    assert [one["name"] for one in repo.json("worker", "token", "list")] == ["made-meanwhile"]
