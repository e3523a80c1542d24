"""On a full disk whose blocks are smaller than a page of memory nobody dies by a signal.

SQLite maps the index of a WAL into memory and sees to one block of each of its pages only: on an
ext4 of blocks of 1 KB, which mkfs chooses for small disks, the first write to another one ended the
process by SIGBUS.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from harness import Proc, Repo
from small_disk import fill

READING = (
    ("run", "list"),
    ("workflow", "list"),
    ("worker", "list"),
    ("doctor",),
)


def filled(repo: Repo) -> Path:
    """Fill the disk; what was only promised to files is written first, so that nothing is left."""
    for _ in range(3):
        ballast = fill(repo)
        os.sync()
    return ballast


def with_a_run(repo: Repo) -> tuple[Proc, Any]:
    """A server, and a run that waits for a worker."""
    repo.shell_workflow("waits", {"step": "true"})
    server = repo.serve()
    run = repo.start("workflow", "run", "waits")
    repo.until(lambda: len(repo.json("run", "list")["runs"]) == 1, "the run")
    return server, run


def read_all(repo: Repo) -> None:
    for arguments in READING:
        done = repo.swamp(*arguments, code=None)
        assert done.returncode in (0, 1), (arguments, done)
        assert "Traceback" not in done.stderr
    assert len(repo.json("run", "list")["runs"]) == 1, "it shows what there is"


def health(repo: Repo, server: Proc) -> str | None:
    """What the server says of itself, be it that it waits for room; None before it answers."""
    assert server.process.poll() is None, server.log()
    try:
        with urllib.request.urlopen(f"{repo.url}/health", timeout=8) as answer:
            return str(json.load(answer)["status"])
    except OSError:
        return None


@pytest.mark.parametrize("remains", [True, False])
def test_what_was_killed_starts_on_a_full_disk_or_waits_and_is_read(
    blocks: Repo, remains: bool
) -> None:
    """`remains`: of the index of the WAL, which was whole, the file is there still."""
    repo = blocks
    server, run = with_a_run(repo)
    server.process.kill()
    server.wait()
    for shared in (repo.path / ".swamp").rglob("*-shm"):
        if not remains:
            shared.unlink()
    ballast = filled(repo)
    read_all(repo)
    for room in (0, 1024, 9216, 34_816, 40_960, 70_000, 140_000):
        os.truncate(ballast, ballast.stat().st_size - room)
        os.sync()
        read_all(repo)
        server = repo.serve(wait=False)
        repo.until(lambda: health(repo, server) is not None, "it serves or waits")  # noqa: B023
        read_all(repo)
        assert server.process.poll() is None, server.log()
        server.process.kill()
        server.wait()
        ballast = filled(repo)
    read_all(repo)
    server = repo.serve(wait=False)
    repo.until(lambda: health(repo, server) is not None, "it serves or waits")
    ballast.unlink()
    repo.until(lambda: health(repo, server) == "ok", "it goes on by itself")
    repo.worker("w1", "--label", "pool=worker")
    assert run.wait(timeout=60) == 0, "nothing is lost"
    assert server.terminate() == 0
    read_all(repo)


def test_a_disk_that_fills_while_it_is_served_ends_nobody(blocks: Repo) -> None:
    repo = blocks
    server, run = with_a_run(repo)
    ballast = filled(repo)
    read_all(repo)
    repo.swamp("workflow", "run", "waits", code=1)
    assert server.process.poll() is None, server.log()
    ballast.unlink()
    repo.until(lambda: health(repo, server) == "ok", "it goes on by itself")
    repo.worker("w1", "--label", "pool=worker")
    assert run.wait(timeout=60) == 0
    assert server.terminate() == 0


WRITES = """
import os, sys
from pathlib import Path
from datastore.sqlite_file import connect, put_whole
db = connect(Path(sys.argv[1]), 1.0, "PRAGMA journal_mode=WAL", "CREATE TABLE t(a)")
put_whole(db, "t", [(number,) for number in range(9)])
os.kill(os.getpid(), 9)
"""
READS = """
import sys
from pathlib import Path
from datastore.sqlite_file import open_to_read
print(open_to_read(Path(sys.argv[1])).execute("SELECT count(*) FROM t").fetchone()[0])
"""


def test_what_only_the_wal_has_is_read_on_a_full_disk(blocks: Repo) -> None:
    """Each in a process of its own, which a signal may end."""
    database = blocks.path / "one.db"
    code = subprocess.run([sys.executable, "-c", WRITES, database], check=False).returncode
    assert code == -9
    filled(blocks)
    command = [sys.executable, "-c", READS, database]
    read = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (read.returncode, read.stdout) == (0, "9\n"), read
