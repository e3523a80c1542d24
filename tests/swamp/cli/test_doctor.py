"""`swamp doctor` finds what is wrong, names the way out, and changes nothing."""

import errno
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from datastore import checkup, checkup_disk
from datastore.desired import DesiredTree
from datastore.engine import open_engine
from datastore.kinds import KINDS, PENDING, RUNS
from datastore.layout import Layout
from datastore.lock import RepositoryLock
from datastore.observed_files import Stored
from swamp.protocol import PROTOCOL_VERSION

RUN = {
    "apiVersion": "swamp/v1",
    "kind": "Run",
    "metadata": {"name": "r1", "uid": "r1", "createdAt": "2026-01-01T00:00:00.000Z"},
    "spec": {"workflow": "w", "workflowId": "x", "definition": {}},
    "status": {"state": "failed", "startedAt": "2026-01-01T00:00:00.000Z"},
}


@pytest.fixture
def opened(repo: Layout) -> Layout:
    """A repository that a server has had: with a run, a journal and an index."""
    engine = open_engine(repo, KINDS.values())
    engine.observed.follow(1, [Stored(RUNS, "r1", RUN)])
    engine.observed.catch_up()
    engine.close()
    return repo


def old(path: Path, text: str | None = None) -> Path:
    """A file that nobody has touched for an hour."""
    if text is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    hour_ago = time.time() - 3600
    os.utime(path, (hour_ago, hour_ago))
    return path


def wrong(result: Any) -> list[tuple[str, str, str]]:
    """Level, check and message of everything that is not well; each has a way out."""
    found = [one for one in result.json["findings"] if one["level"] != "ok"]
    assert all(one.get("wayOut") for one in found)
    return [(one["level"], one["check"], one["message"]) for one in found]


def test_a_new_repository_and_one_that_was_used_are_well(
    repo: Layout, swamp: Any, opened: Layout
) -> None:
    result = swamp("doctor")
    assert result.code == 0
    assert result.out.endswith("\n\nAll is well\n")
    assert {line.split()[0] for line in result.out.splitlines()[:-2]} == {"OK"}
    for told in (
        f"swamp 0.1.0 (protocol {PROTOCOL_VERSION}), Python 3.",
        "nobody holds the repository",
        "newest 500 finished runs",
        "1 records looked at",
        "journal.db is whole",
        "index.db is whole",
        "folders can be written",
        "free of",
    ):
        assert told in result.out
    assert swamp("doctor", "--json").json["server"] is None


def test_it_changes_nothing(opened: Layout, swamp: Any) -> None:
    old(opened.desired("workers") / ".12-3.swap", "spec: {}")
    old(opened.observed("runs") / "bad.yaml", "a: [")

    def everything() -> dict[str, tuple[int, int]]:
        paths = [path for path in opened.root.rglob("*") if path.suffix not in (".db-shm",)]
        return {str(p): (p.stat().st_mtime_ns, p.stat().st_size) for p in paths if p.is_file()}

    before = everything()
    swamp("doctor")
    after = everything()
    assert {path: after.get(path) for path in before} == before


def test_files_of_people_that_are_not_in_force(opened: Layout, swamp: Any) -> None:
    old(opened.workflows / "w.yaml", "name: w\njobs: [\n")
    old(opened.desired("workers") / "w1.yaml", "spec:\n  scheduleable: false\n")
    result = swamp("doctor", "--json")
    assert result.code == 1
    assert [(level, check) for level, check, _ in wrong(result)] == [("error", "files")] * 2
    told = [message for _, _, message in wrong(result)]
    assert any(one.startswith("datastore/desired/workers/w1.yaml:2:3: ") for one in told)
    assert any(one.startswith("workflows/w.yaml:3:1: ") for one in told)


def test_records_that_are_not_as_the_server_wrote_them(opened: Layout, swamp: Any) -> None:
    folder = opened.observed("runs")
    live = {**RUN, "metadata": {**RUN["metadata"], "name": "r2"}}  # type: ignore[dict-item]
    live["status"] = {"state": "running", "startedAt": "2026-01-01T00:00:00.000Z"}
    old(folder / "r2.yaml", json.dumps(live))
    ended = {**RUN, "metadata": {**RUN["metadata"], "name": "r3"}}  # type: ignore[dict-item]
    old(folder / "r3.yaml", json.dumps(ended))
    old(folder / "r1.yaml", (folder / "r1.yaml").read_text().replace("failed", "succeeded"))
    result = swamp("doctor", "--json")
    assert result.code == 0, "warnings alone are no failure"
    assert wrong(result) == [
        ("warning", "records",
         "datastore/observed/runs/r1.yaml was changed by somebody else than the server"),
        ("warning", "orphans",
         "datastore/observed/runs/r2.yaml says running, but the server did not write it"),
    ]  # fmt: skip
    (folder / "r1.yaml").unlink()
    assert ("warning", "records", "datastore/observed/runs/r1.yaml is missing") in wrong(
        swamp("doctor", "--json")
    )
    old(opened.observed(PENDING.folder) / "p.yaml", "kind: Lease\n")
    result = swamp("doctor", "--json")
    assert result.code == 1
    assert ("error", "records") in [(level, check) for level, check, _ in wrong(result)]


def test_a_file_that_is_being_written_is_no_finding_while_somebody_may_write_it(
    opened: Layout, swamp: Any
) -> None:
    (opened.observed("runs") / "r9.yaml").write_text("half: [")
    (opened.desired("workers") / ".12-3.swap").write_text("spec: {}")
    serving = RepositoryLock(opened)
    serving.acquire()
    checks = {check for _, check, _ in wrong(swamp("doctor", "--json"))}
    serving.release()
    assert not checks & {"records", "leftovers"}
    found = wrong(swamp("doctor", "--json"))
    assert [(level, check) for level, check, _ in found] == [("error", "records")]


def test_leftovers_are_told_and_kept(opened: Layout, swamp: Any) -> None:
    save = old(opened.desired("workers") / ".12-3.swap", "spec: {note: mine}")
    temp = old(opened.observed("leases") / ".12-4.tmp", "x")
    told = [(check, message.split()[0]) for _, check, message in wrong(swamp("doctor", "--json"))]
    assert told == [
        ("leftovers", "datastore/desired/workers/.12-3.swap"),
        ("leftovers", "datastore/observed/leases/.12-4.tmp"),
    ]
    assert save.read_text() == "spec: {note: mine}"
    assert temp.exists()


def test_broken_databases_are_found(opened: Layout, swamp: Any) -> None:
    with sqlite3.connect(opened.index) as db:
        db.execute("PRAGMA journal_mode=DELETE")
    data = bytearray(opened.index.read_bytes())
    data[200:8000] = bytes(7800)
    opened.index.write_bytes(bytes(data))
    opened.journal.write_bytes(b"no database at all, but long enough to be looked at" * 100)
    result = swamp("doctor", "--json")
    assert result.code == 1
    found = [message.split(":")[0] for _, check, message in wrong(result) if check == "databases"]
    assert found == [".swamp/journal.db", ".swamp/index.db"]


def test_the_lock_and_what_a_killed_server_left(opened: Layout, swamp: Any) -> None:
    opened.socket.touch()
    opened.lock.write_text(
        '{"pid": 4194305, "since": "2026-01-01T00:00:00.000Z", "command": ["swamp", "serve"]}'
    )
    result = swamp("doctor", "--json")
    assert result.code == 0
    assert wrong(result) == [
        ("warning", "lock", ".swamp/serve.sock was left by a server that was killed")
    ]
    assert "pid 4194305, which held it, was killed" in result.out
    opened.socket.unlink()
    with RepositoryLock(opened):
        ((level, check, message),) = wrong(swamp("doctor", "--json"))
    assert (level, check) == ("warning", "lock")
    assert message.startswith(f"held by pid {os.getpid()} since ")
    assert "does not answer" in message


@pytest.mark.parametrize(
    ("put", "odd"),
    [
        (Path.mkdir, "is a folder, expected a file"),
        (os.mkfifo, "is no regular file"),
        (lambda path: path.symlink_to(path), "cannot be read: Too many levels of symbolic links"),
    ],
)
def test_a_lock_that_is_no_file_tells_nothing_of_who_holds_it(
    opened: Layout, swamp: Any, put: Callable[[Path], None], odd: str
) -> None:
    """Regression: nobody was said to hold the repository, while a server ran."""
    opened.lock.unlink(missing_ok=True)
    put(opened.lock)
    result = swamp("doctor", "--json")
    what = f".swamp/lock {odd}: nobody can tell who holds the repository"
    assert ("error", "lock", what) in wrong(result)
    assert "nobody holds" not in result.out
    assert result.code == 1


def test_what_others_could_read(opened: Layout, swamp: Any) -> None:
    opened.private.chmod(0o755)
    opened.key.touch()
    opened.key.chmod(0o644)
    result = swamp("doctor", "--json")
    assert result.code == 1
    assert wrong(result) == [
        ("warning", "permissions", ".swamp is open to others"),
        ("error", "permissions", ".swamp/key is open to others"),
    ]


def test_runs_that_nobody_serves_are_told_with_what_becomes_of_them(
    repo: Layout, swamp: Any
) -> None:
    engine = open_engine(repo, KINDS.values())
    for name, more in (("own", {"ownProcess": True}), *((f"r{n}", {}) for n in range(4))):
        document: dict[str, Any] = json.loads(json.dumps(RUN))
        document["metadata"]["name"] = name
        document["spec"] |= more
        document["status"]["state"] = "running"
        engine.observed.follow(1, [Stored(RUNS, name, document)])
    engine.observed.catch_up()
    engine.close()
    result = swamp("doctor", "--json")
    assert result.code == 0
    nobody = "is recorded as running, but nobody serves this repository"
    assert wrong(result) == [
        ("warning", "runs", f"run own (w) {nobody}"),
        ("warning", "runs", f"run r0 (w) {nobody}"),
        ("warning", "runs", f"run r1 (w) (and 2 more) {nobody}"),
    ]
    out = swamp("doctor").out
    assert "nothing: the next `swamp workflow run` or `swamp serve` ends it" in out
    assert "start `swamp serve`: it goes on or ends then" in out
    with RepositoryLock(repo):
        found = wrong(swamp("doctor", "--json"))
    assert [check for _, check, _ in found] == ["lock"], "somebody has them in hand"


def test_folders_that_cannot_be_written_are_one_error(
    opened: Layout, swamp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    ((level, check, message),) = wrong(swamp("doctor", "--json"))
    assert (level, check) == ("error", "permissions")
    assert message.startswith(f"{opened.root} and ")
    assert message.endswith(
        f" more folders cannot be written: their permissions shut out this user"
        f" (uid {os.geteuid()})"
    )
    closed = opened.observed("runs")
    monkeypatch.setattr(os, "access", lambda path, mode: path != closed)
    ((_, _, message),) = wrong(swamp("doctor", "--json"))
    assert message.startswith("datastore/observed/runs cannot be written: ")


def test_little_room(opened: Layout, swamp: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    free = shutil.disk_usage(opened.root).free
    monkeypatch.setattr(checkup_disk, "ROOM_PART", 1)
    monkeypatch.setattr(checkup_disk, "ROOM_WARNING_BYTES", free * 2)
    assert swamp("doctor").code == 0
    assert [one[:2] for one in wrong(swamp("doctor", "--json"))] == [("warning", "disk")]
    monkeypatch.setattr(checkup_disk, "ROOM_ERROR_BYTES", free * 2)
    assert swamp("doctor").code == 1


def test_databases_that_cannot_be_read_just_now_are_no_broken_ones(
    opened: Layout, swamp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: on a full disk it advised to remove the index, and called records strangers'."""

    def refuse(path: Path) -> None:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR
        raise error

    monkeypatch.setattr(checkup, "open_to_read", refuse)
    monkeypatch.setattr(checkup_disk, "open_to_read", refuse)
    result = swamp("doctor", "--json")
    assert wrong(result) == [
        ("error", "records", "not looked at, as .swamp/index.db cannot be read: disk I/O error"),
        ("error", "databases", ".swamp/journal.db cannot be looked into: disk I/O error"),
        ("error", "databases", ".swamp/index.db cannot be looked into: disk I/O error"),
    ]
    assert "remove" not in result.out
    assert "move it away" not in result.out


def test_a_thousand_files_with_one_fault_are_eleven_lines(repo: Layout, swamp: Any) -> None:
    engine = open_engine(repo, KINDS.values())
    for number in range(1_000):
        metadata = {**RUN["metadata"], "name": f"r{number:03}"}
        run = {**RUN, "metadata": metadata}
        engine.observed.follow(number + 1, [Stored(RUNS, f"r{number:03}", run)])
    engine.observed.catch_up()
    engine.close()
    runs = sorted(repo.observed("runs").glob("*.yaml"))
    for path in runs[:500]:
        path.unlink()
    for path in runs[500:]:
        old(path, "a: [")
    found = [message for _, _, message in wrong(swamp("doctor", "--json"))]
    assert len(found) == 22
    assert "490 more files of datastore/observed/runs/ are not as the server wrote them" in found
    assert "490 more files of datastore/observed/runs/ are missing" in found


def test_a_folder_that_is_none_spoils_no_other_look(opened: Layout, swamp: Any) -> None:
    shutil.rmtree(opened.observed("runs"))
    opened.observed("runs").write_text("no folder")
    found = swamp("doctor", "--json")
    assert ("error", "records", "datastore/observed/runs: Not a directory") in [
        (level, check, message.removeprefix("the look ended early: "))
        for level, check, message in wrong(found)
    ]
    shutil.rmtree(opened.workflows)
    opened.workflows.write_text("no folder")
    shutil.rmtree(opened.desired("workers"))
    opened.desired("workers").write_text("no folder")
    (opened.models / "bad.yaml").write_text("a: [")
    found = swamp("doctor", "--json")
    told = [message for _, _, message in wrong(found)]
    assert "workflows is no folder, and has to be one" in told
    assert "datastore/desired/workers is no folder, and has to be one" in told
    assert any(message.startswith("models/bad.yaml") for message in told)
    checks = {one["check"] for one in found.json["findings"]}
    assert {"lock", "files", "databases", "permissions", "disk"} <= checks


def test_settings_that_cannot_be(opened: Layout, swamp: Any) -> None:
    opened.marker.write_text("retention: {keepFor: soon}\n")
    result = swamp("doctor", "--json")
    assert result.code == 1
    assert [one[:2] for one in wrong(result)] == [("error", "settings")]
    opened.marker.write_text("retention: {keepRuns: 7, keepFor: 2d}\n")
    assert "the newest 7 finished runs keep their records, for 2d after their end" in (
        swamp("doctor").out
    )


HEALTH = {
    "version": "0.1.0", "degraded": None, "retention": {"keepRuns": 9, "keepForS": None},
}  # fmt: skip


def test_a_running_server_is_asked(opened: Layout, swamp: Any, server: Any) -> None:
    server.answers["GET", "/health"] = (200, HEALTH)
    problem = {"path": "models/m.yaml", "line": 2, "column": 5, "problem": "unknown key"}
    server.answers["GET", "/api/v1/problems"] = (200, [problem])
    result = swamp("doctor", "--json")
    assert result.code == 1
    assert wrong(result) == [("error", "files", "models/m.yaml:2:5: unknown key")]
    assert "newest 9 finished runs" in result.out
    server.answers["GET", "/health"] = (200, {**HEALTH, "version": "0.0.1", "degraded": "full"})
    server.answers["GET", "/api/v1/problems"] = (200, [])
    assert wrong(swamp("doctor", "--json")) == [
        ("warning", "versions", "the server is swamp 0.0.1, this command 0.1.0"),
        ("error", "server", "degraded: full"),
    ]


@pytest.mark.parametrize(
    ("reason", "way"),
    [
        ("the journal cannot be written: [Errno 28] the disk is full", "make room on the disk"),
        (f"desired/x: {os.strerror(errno.ELOOP)}", "move away what stands there"),
        (f"models/a: {os.strerror(errno.EACCES)}", "let the user who runs swamp read"),
        (f"desired: {os.strerror(errno.EROFS)}", "mount the disk writable"),
        (f"x: {os.strerror(errno.EMFILE)}", "ulimit -n"),
        ("x: Input/output error", "mend what it names"),
        (
            f"events: {os.strerror(errno.EACCES)}; desired: {os.strerror(errno.ENOSPC)}",
            "let the user who runs swamp read",
        ),
    ],
)
def test_the_way_out_fits_what_the_server_says(
    opened: Layout, swamp: Any, server: Any, reason: str, way: str
) -> None:
    """Regression: a link that led to itself was to be mended by making room."""
    server.answers["GET", "/health"] = (200, {**HEALTH, "degraded": reason})
    server.answers["GET", "/api/v1/problems"] = (200, [])
    (found,) = [one for one in swamp("doctor", "--json").json["findings"] if one["level"] != "ok"]
    assert way in found["wayOut"]
    assert ("room" in found["wayOut"]) == ("full" in reason)


def test_a_place_that_cannot_be_looked_at_hides_no_problem(
    opened: Layout, swamp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the files were said to be in force as they stand."""

    def refused(tree: DesiredTree) -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(opened.desired("")))

    monkeypatch.setattr(DesiredTree, "scan", refused)
    (opened.workflows / "bad.yaml").write_text("a: [")
    told = [message for _, check, message in wrong(swamp("doctor", "--json")) if check == "files"]
    assert told[0] == "datastore/desired: cannot be read: Permission denied"
    assert told[1].startswith("workflows/bad.yaml:")


def test_a_copied_repository_is_one_line(opened: Layout, swamp: Any, tmp_path: Path) -> None:
    """Regression: each record was said to be changed by somebody."""
    old(opened.observed("runs") / "r1.yaml")
    result = swamp("doctor", "--json")
    assert wrong(result) == []
    (told,) = (one["message"] for one in result.json["findings"] if one["check"] == "records")
    assert told.endswith("; 1 of them were copied or touched, what they hold is as it was written")


def test_a_file_that_can_name_nothing_says_so_and_no_terminal_obeys_it(
    opened: Layout, swamp: Any
) -> None:
    folder = opened.desired("workers")
    for name in ("\u00e4 b", "-rf", "x" * 240, "two\nlines", "\x1b[2J"):
        old(folder / f"{name}.yaml", "spec: {note: x}\n")
    os.mkfifo(folder / "pipe.yaml")
    shown = swamp("doctor")
    assert shown.code == 1
    told = [line for line in shown.out.splitlines() if "desired/workers" in line]
    assert all(line.isprintable() for line in told)
    assert sum("cannot name a worker: letters, digits" in line for line in told) == 5
    assert sum("pipe.yaml: is no regular file" in line for line in told) == 1
    assert len(told) == 6


def test_a_small_disk_may_be_small(
    opened: Layout, swamp: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Small:
        f_bavail, f_blocks, f_frsize, f_files, f_favail, f_flag = 17, 22, 1 << 20, 0, 0, 0
        f_bsize = 4096

    monkeypatch.setattr(os, "statvfs", lambda path: Small)
    assert wrong(swamp("doctor", "--json")) == []
