"""The tutorial of the README does what it says: its blocks, in order, in one shell."""

import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import yaml
from harness import alive_with, free_port

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
WITHIN_S = 60.0


def environment(home: Path) -> dict[str, str]:
    """As on a machine of somebody who has `swamp` in PATH and git set up, and nothing else."""
    own = {key: value for key, value in os.environ.items() if not key.startswith("SWAMP_")}
    (home / ".gitconfig").write_text("[user]\n  name = Somebody\n  email = somebody@example.org\n")
    path = f"{Path(sys.executable).parent}:{own['PATH']}"
    return {**own, "HOME": str(home), "PATH": path, "TMPDIR": str(home)}


def script(port: int) -> str:
    """All blocks, each announced; the first command that fails ends it."""
    parts = [f"echo '--- block {number}'\n{block}" for number, block in enumerate(BLOCKS)]
    return "set -eu\n" + "".join(parts).replace("9090", str(port))


def kill_all(home: Path) -> list[int]:
    """End every process whose environment names the folder."""
    found = alive_with(str(home))
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return found


def run(home: Path) -> list[str]:
    """What each block printed. Whatever is left running is killed, and a failure."""
    shell = subprocess.Popen(
        ["bash", "-c", script(free_port())],
        cwd=home,
        env=environment(home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    # What runs in the background holds the pipe open, so all of it has to go.
    watch = threading.Timer(WITHIN_S, kill_all, [home])
    watch.start()
    out, _ = shell.communicate()
    watch.cancel()
    left = kill_all(home)
    logs = "".join(log.read_text() for log in home.glob("my-fleet/.swamp/logs/*.log"))
    assert shell.returncode == 0, f"{out}\n{logs}"
    assert left == [], out
    return re.split(r"--- block \d+\n", out)[1:]


def test_the_tutorial_runs_as_it_stands(tmp_path: Path) -> None:
    blocks = run(tmp_path)
    assert len(blocks) == len(BLOCKS) >= 10
    assert "1 of 1 workflows are valid" in blocks[1]
    assert "idle" in blocks[3]
    assert blocks[4].count("▏ hello ") == 3
    assert "queued, waiting for worker matching labels pool=tutorial" in blocks[4]
    assert "Completed workflow greet succeeded" in blocks[4]
    assert blocks[5].count("kind: RunStory") == 1
    assert "cordoned" in blocks[6]
    assert "1 cordoned" in blocks[7]
    assert "Completed workflow greet succeeded" in blocks[8]
    assert blocks[9].count("worker: w1") >= 6
    assert "A fleet that greets" in blocks[9] and "Greeted again" in blocks[9]
    assert "disconnected" in blocks[10]
    assert blocks[10].count('"status": "succeeded"') == 2
    check_what_is_left(tmp_path / "my-fleet")


def check_what_is_left(repository: Path) -> None:
    """Two stories, nothing live, and in git what people changed and the history."""
    stories = list((repository / "datastore" / "history" / "greet").glob("*.yaml"))
    assert len(stories) == 2
    leases = (repository / "datastore" / "observed" / "leases").glob("*.yaml")
    states = [yaml.safe_load(lease.read_text())["status"]["state"] for lease in leases]
    assert states == ["completed"] * 6
    git = ["git", "-C", str(repository)]
    changed = subprocess.run([*git, "status", "--short"], capture_output=True, text=True)
    assert changed.stdout == ""
    kept = subprocess.run([*git, "ls-files"], capture_output=True, text=True).stdout.splitlines()
    inside = [path for path in kept if path.startswith("datastore/observed/")]
    assert all(path.endswith(".gitignore") for path in inside)
    assert not [path for path in kept if path.startswith(".swamp/")]
