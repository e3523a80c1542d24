"""A repository that is moved below a process: nothing is built at its old path, and work is done
once."""

from __future__ import annotations

import subprocess
from pathlib import Path

from harness import SWAMP, Repo


def everything_in(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Each file with its inode and content; sockets with none."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_ino,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in folder.rglob("*")
    }


def waiting(repo: Repo) -> str:
    """A run whose only step waits for a worker; its id."""
    repo.shell_workflow("w", {"step": f"echo done >> {repo.base / 'ran'}"}, "queueTimeout: 0\n")
    run = repo.start("workflow", "run", "w", "--json")
    repo.until(lambda: repo.json("worker", "queue") != [], "the waiting step")
    run.kill()
    run.wait()
    (name,) = repo.records("runs")
    return name


def test_the_server_ends_and_the_next_one_goes_on_in_the_moved_folder(repo: Repo) -> None:
    """Regression: a second repository was built at the old path, both were served, and a waiting
    step ran under either."""
    server = repo.serve()
    run = waiting(repo)
    old, moved = repo.path, repo.base / "moved"
    old.rename(moved)
    assert server.wait() == 1
    assert not old.exists(), "nothing was built there"
    assert f"was moved to {moved}" in server.log() and "start again there" in server.log()

    repo.path = moved
    assert repo.json("run", "show", run)["status"] == "running"
    repo.serve()
    repo.worker("w1", "--label", "pool=worker")
    repo.until(lambda: repo.json("run", "show", run)["status"] == "succeeded", "its end")
    assert (repo.base / "ran").read_text() == "done\n"


def test_what_has_the_place_by_then_is_not_touched(repo: Repo) -> None:
    server = repo.serve()
    run = waiting(repo)
    old, moved, other = repo.path, repo.base / "moved", repo.base / "other"
    other.mkdir()
    subprocess.run([*SWAMP, "init"], cwd=other, env=repo.env, check=True, capture_output=True)
    (other / ".swamp" / "serve.sock").write_text("of another server")
    before = everything_in(other)
    old.rename(moved)
    other.rename(old)
    assert server.wait() == 1
    assert everything_in(old) == before
    assert "another folder is there now" in server.log()
    repo.path = moved
    assert repo.json("run", "show", run)["status"] == "running"


def test_one_that_is_back_at_once_is_served_on(repo: Repo) -> None:
    server = repo.serve()
    run = waiting(repo)
    for _ in range(20):
        repo.path.rename(repo.base / "moved")
        (repo.base / "moved").rename(repo.path)
    repo.worker("w1", "--label", "pool=worker")
    repo.until(lambda: repo.json("run", "show", run)["status"] == "succeeded", "its end")
    assert server.terminate() == 0


def test_a_run_of_a_commands_own_ends_too(repo: Repo) -> None:
    began = repo.base / "began"
    repo.write(
        "workflows/here.yaml",
        "name: here\njobs:\n  - name: job\n    steps:\n      - name: step\n        task: {type:"
        " model_method, modelType: command/shell, modelName: here, methodName: execute,"
        f" inputs: {{run: 'touch {began}; sleep 60'}}}}\n",
    )
    run = repo.start("workflow", "run", "here")
    repo.until(began.exists, "its step")
    old, moved = repo.path, repo.base / "moved"
    old.rename(moved)
    said, _ = run.communicate(timeout=30)
    assert run.returncode == 1
    assert f"was moved to {moved}" in said
    assert not old.exists()
