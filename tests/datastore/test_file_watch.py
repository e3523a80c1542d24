from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from record_samples import lease, token, worker

from datastore.courtesy import Pause
from datastore.definitions.catalog import Catalog
from datastore.definitions.definition_file import Kind
from datastore.desired import DesiredTree
from datastore.engine import open_store
from datastore.errors import NotFound
from datastore.file_watch import FileWatch
from datastore.kinds import LEASES, TOKENS, WORKERS
from datastore.layout import Layout
from datastore.store import Store

BUSY_S = 1.0
"""What a machine that is busy with other tests may add to any of the promised times."""


class Watched:
    """An open repository whose files are followed."""

    def __init__(self, layout: Layout, store: Store, watch: FileWatch, catalog: Catalog) -> None:
        self.layout = layout
        self.store = store
        self.watch = watch
        self.catalog = catalog

    def save(self, name: str, text: str) -> Path:
        path = self.layout.desired("workers") / f"{name}.yaml"
        path.write_text(text)
        return path

    def note(self, name: str) -> object:
        file = self.store.desired(WORKERS, name)
        return None if file is None else file.spec.get("note")

    def has_model(self, name: str) -> bool:
        with suppress(NotFound):
            return self.catalog.model(name) is not None
        return False

    async def soon(self, true: Callable[[], bool], within_s: float = 0.2) -> None:
        start = time.monotonic()
        while not true():
            assert time.monotonic() < start + within_s + BUSY_S, "waited in vain"
            await asyncio.sleep(0.005)


@asynccontextmanager
async def watched(path: Path, **options: object) -> AsyncIterator[Watched]:
    layout = Layout(path)
    store, engine, _ = open_store(layout)
    engine.start(asyncio.get_running_loop())
    catalog = Catalog(path)
    trees = DesiredTree(layout), catalog
    watch = FileWatch(layout, store, trees, engine, **options)  # type: ignore[arg-type]
    await watch.start()
    running = asyncio.ensure_future(watch.run())
    await asyncio.sleep(0.05)
    try:
        yield Watched(layout, store, watch, catalog)
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        await asyncio.to_thread(engine.close)


MODEL = "name: {name}\ntype: command/shell\nmethods: {{execute: {{arguments: {{run: 'true'}}}}}}\n"


async def test_one_edit_takes_effect_at_once(tmp_path: Path) -> None:
    async with watched(tmp_path) as repo:
        woken: list[str] = []
        repo.store.watch(WORKERS, woken.append)
        path = repo.save("w1", "spec: {note: one}")
        await repo.soon(lambda: repo.note("w1") == "one")
        path.unlink()
        await repo.soon(lambda: repo.store.desired(WORKERS, "w1") is None)
        assert woken == ["w1", "w1"]


@pytest.mark.parametrize("count", [200, 2_000])
async def test_many_edits_take_a_millisecond_each(tmp_path: Path, count: int) -> None:
    async with watched(tmp_path) as repo:
        for number in range(count):
            repo.save(f"w{number}", f"spec: {{note: '{number}'}}")
        longest_s, last = 0.0, time.monotonic()

        def done() -> bool:
            nonlocal longest_s, last
            longest_s, last = max(longest_s, time.monotonic() - last), time.monotonic()
            return all(repo.note(f"w{number}") == str(number) for number in range(count))

        await repo.soon(done, 0.2 + count / 1000)
        assert longest_s < 0.5, "the loop was held up"


async def test_a_burst_with_files_of_other_names_leads_to_one_look_at_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sed -i` and editors make such files by the thousand, and each might be a folder."""
    async with watched(tmp_path) as repo:
        await repo.soon(lambda: not repo.watch._rescan_now.is_set())
        swept: list[object] = []
        sweep = Catalog._sweep

        def counting(catalog: Catalog, kind: Kind, pause: Pause) -> None:
            swept.append(kind)
            sweep(catalog, kind, pause)

        monkeypatch.setattr(Catalog, "_sweep", counting)
        for number in range(400):
            (repo.layout.models / f"sed{number}").mkdir()
            (repo.layout.models / f"m{number}.yaml").write_text(MODEL.format(name=f"m{number}"))
        await repo.soon(lambda: all(repo.has_model(f"m{number}") for number in range(400)), 1.0)
        await asyncio.sleep(0.3)
        assert 1 <= swept.count("model") <= 12


async def test_without_events_the_rescan_finds_everything(tmp_path: Path) -> None:
    async with watched(tmp_path, events=False, rescan_s=0.2) as repo:
        repo.save("w1", "spec: {note: one}")
        (repo.layout.models / "a.yaml").write_text(MODEL.format(name="a"))
        await repo.soon(lambda: repo.note("w1") == "one" and repo.has_model("a"))
        repo.store.commit([worker("w1")])
        await repo.store.barrier()
        file = repo.layout.record_file("workers", "w1")
        await repo.soon(file.exists)
        text = file.read_text()
        file.write_text("wrong: true")
        await repo.soon(lambda: file.read_text() == text)


async def test_files_that_come_and_go_with_their_folder_are_noticed(tmp_path: Path) -> None:
    """There is no event for a file in a folder that is moved, nor for one that came too early."""
    prepared = tmp_path / "prepared" / "deep"
    prepared.mkdir(parents=True)
    (prepared / "a.yaml").write_text(MODEL.format(name="m"))
    async with watched(tmp_path) as repo:
        inside = prepared.parent.rename(repo.layout.models / "moved")
        await repo.soon(lambda: repo.has_model("m"))
        inside.rename(tmp_path / "prepared")
        await repo.soon(lambda: not repo.has_model("m"))


async def test_a_folder_with_a_dot_in_its_name_is_noticed_as_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: what it holds was in force with the next rescan, half a minute later."""
    begun = asyncio.Semaphore(0)
    monkeypatch.setattr(FileWatch, "_watch_has_begun", lambda watch: begun.release())
    prepared = tmp_path / "prepared"
    prepared.mkdir()
    (prepared / "a.yaml").write_text(MODEL.format(name="m"))
    async with watched(tmp_path) as repo:
        async with asyncio.timeout(5):
            # That of `observed/`, too: nothing is found by a rescan here.
            await begun.acquire()
            await begun.acquire()
        inside = prepared.rename(repo.layout.models / "team-1.2")
        await repo.soon(lambda: repo.has_model("m"))
        inside.rename(prepared)
        await repo.soon(lambda: not repo.has_model("m"))


async def test_a_folder_that_was_removed_is_made_again_and_watched(tmp_path: Path) -> None:
    async with watched(tmp_path) as repo:
        folder = repo.layout.desired("workers")
        shutil.rmtree(folder)
        folder.mkdir()
        await repo.soon((folder / ".gitignore").exists, 1.0)
        await asyncio.sleep(1.1)
        repo.save("w1", "spec: {note: one}")
        await repo.soon(lambda: repo.note("w1") == "one")


async def test_a_file_that_an_editor_empties_first_is_no_problem(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with watched(tmp_path) as repo:
        path = repo.save("w1", "")
        await asyncio.sleep(0.08)
        path.write_text("spec: {note: one}")
        await repo.soon(lambda: repo.note("w1") == "one")
        await asyncio.sleep(0.2)
        assert repo.watch.problems() == [] and "not in force" not in caplog.text
        path.write_text("spec: [")
        await repo.soon(lambda: "w1.yaml:" in caplog.text, 0.4)
        path.write_text("spec: {note: two}")
        await repo.soon(lambda: repo.watch.problems() == [])
        assert caplog.text.count("w1.yaml:") == 1


async def test_an_edit_in_observed_is_put_back_and_own_writes_are_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with watched(tmp_path) as repo:
        repo.store.commit([worker(f"w{number}") for number in range(50)])
        file = repo.layout.record_file("workers", "w7")
        await repo.soon(file.exists)
        text = file.read_text()
        file.write_text(text + "# mine\n")
        await repo.soon(lambda: file.read_text() == text, 1.0)
        await repo.soon(lambda: "datastore/desired/workers/w7.yaml" in caplog.text)
        file.unlink()
        await repo.soon(file.exists, 1.0)
        repo.store.commit(removals=[(WORKERS, "w7")])
        await repo.soon(lambda: not file.exists())
        await asyncio.sleep(0.8)
        assert not file.exists()
        assert [line.count("w7.yaml") > 0 for line in caplog.messages] == [True, True]


async def test_a_stale_save_is_told_once_and_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with watched(tmp_path) as repo:
        ended = token("t1", "revoked").with_spec(revoked=True)
        lost = lease("r1.j.s.1", state="completed")
        for record in (ended, token("t2", "expired"), lost):
            repo.store.load(record)
        tokens, leases = repo.layout.desired("tokens"), repo.layout.desired("leases")
        (tokens / "t1.yaml").write_text("spec: {revoked: true}")
        await repo.soon(lambda: repo.store.desired(TOKENS, "t1") is not None)
        assert caplog.messages == []
        (tokens / "t1.yaml").write_text("spec: {note: old}")
        (tokens / "t2.yaml").write_text("spec: {expiresAt: 2030-01-01}")
        (leases / "r1.j.s.1.yaml").write_text("spec: {cancel: true}")
        await repo.soon(lambda: len(caplog.messages) == 3)
        told = sorted(caplog.messages)
        assert "Lease 'r1.j.s.1' is completed, ends are final" in told[0]
        assert "'revoked' of EnrollmentToken 't1' cannot be taken back" in told[1]
        assert "EnrollmentToken 't2' is expired, ends are final" in told[2]
        assert repo.store.get(LEASES, "r1.j.s.1").state == "completed"


async def test_what_is_not_read_is_told_once_and_again_when_it_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    layout = Layout(tmp_path)
    async with watched(tmp_path) as server:
        stray = layout.desired("workers") / "w1.yml"
        stray.write_text("spec: {note: x}")
        told = "datastore/desired/workers/w1.yml: is not read, "
        await server.soon(lambda: told in caplog.text)
        assert "rename it to w1.yaml" in caplog.text
        await server.watch.rescan()
        await asyncio.sleep(0.3)
        assert caplog.text.count(told) == 1
        server.save("w1", "spec: {note: y}")
        await server.watch.rescan()
        await server.soon(lambda: "w1.yaml beside it is" in caplog.text)
        stray.unlink()
        await server.soon(lambda: server.watch.problems() == [])
        assert server.note("w1") == "y"
    caplog.clear()
    (layout.desired("workers") / "more").mkdir()
    async with watched(tmp_path) as server:
        assert "workers/more: is a folder" in caplog.text, "told at a start too"


async def test_many_lines_become_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with watched(tmp_path) as repo:
        for number in range(40):
            repo.save(f"w{number}", "spec: [")
        await repo.soon(lambda: len(repo.watch.problems()) == 40)
        await asyncio.sleep(0.3)
        assert 1 <= len(caplog.messages) <= 3
        assert "files are not in force; one of them: " in caplog.text


async def test_of_a_folder_whose_files_go_a_part_at_a_time_there_are_few_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Regression: `rm -rf` of 20,000 files was dozens of lines, over 20 s."""
    caplog.set_level(logging.WARNING)
    async with watched(tmp_path, events=False) as repo:
        names = [f"w{number}" for number in range(60)]
        repo.store.commit([worker(name) for name in names])
        paths = [repo.layout.record_file("workers", name) for name in names]
        await repo.soon(lambda: all(path.exists() for path in paths))
        for part in range(0, 60, 10):
            for path in paths[part : part + 10]:
                path.unlink()
            await repo.watch.rescan()
            assert all(path.exists() for path in paths)
    told = [line.split(";")[0] for line in caplog.messages]
    assert told == [
        f"{many} files in observed/ were removed and are there again" for many in (10, 50)
    ]


async def test_a_slow_look_never_undoes_a_newer_one(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    store, engine, _ = open_store(layout)
    tree = DesiredTree(layout)
    watch = FileWatch(layout, store, (tree, Catalog(tmp_path)), engine, events=False)
    path = layout.desired("workers") / "w1.yaml"
    path.write_text("spec: {note: old}")
    slow = tree.scan()
    path.write_text("spec: {note: newer}")
    watch.apply(tree.refresh_record(WORKERS, "w1"))
    watch.apply(slow)
    file = store.desired(WORKERS, "w1")
    assert file is not None and file.spec == {"note": "newer"}
    engine.start(asyncio.get_running_loop())
    await asyncio.to_thread(engine.close)
    os.unlink(path)


async def test_a_disk_that_refuses_folders_is_told_once_and_everything_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    caplog.set_level(logging.WARNING)
    monkeypatch.setattr("datastore.file_watch.GUARD_S", 0.02)
    async with watched(tmp_path, events=False, rescan_s=0.05) as repo:
        with monkeypatch.context() as full:
            full.setattr("datastore.files.write_once", refuse)
            shutil.rmtree(repo.layout.desired("leases"))
            await repo.soon(lambda: repo.watch.trouble is not None)
            repo.save("w1", "spec: {note: one}")
            await repo.soon(lambda: repo.note("w1") == "one")
            assert "leases/.gitignore: No space left on device" in str(repo.watch.trouble)
            await asyncio.sleep(0.3)
        await repo.soon(lambda: repo.watch.trouble is None)
        assert (repo.layout.desired("leases") / ".gitignore").exists()
    for told in ("folders of the repository cannot", "folders that are watched cannot"):
        said = [one for one in caplog.messages if one.startswith(told)]
        # Regression: each rescan that found the repository in its place said it was over.
        assert len(said) == 1


async def test_a_disk_that_cannot_be_read_ends_no_rescan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watched(tmp_path, events=False, rescan_s=0.05) as repo:

        def fail(pause: Pause) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO), "desired")

        with monkeypatch.context() as broken:
            broken.setattr(repo.watch._desired, "changed", fail)
            await repo.soon(lambda: repo.watch.trouble is not None)
        repo.save("w1", "spec: {note: one}")
        await repo.soon(lambda: repo.note("w1") == "one")
        await repo.soon(lambda: repo.watch.trouble is None)


async def test_what_cannot_be_looked_at_hides_nothing_of_the_rest(tmp_path: Path) -> None:
    """A link that leads to itself stopped all looks, and the trouble came and went."""
    async with watched(tmp_path, events=False) as repo:
        (repo.layout.desired("") / "loop").symlink_to("loop")
        (repo.layout.desired("workers") / "loop").symlink_to("loop")
        (repo.layout.models / "broken.yaml").write_text("name: [")
        repo.save("w1", "spec: {note: one}")
        await repo.watch.rescan()
        assert repo.note("w1") == "one"
        assert {problem.path for problem in repo.watch.problems()} == {
            "datastore/desired/loop",
            "datastore/desired/workers/loop",
            "models/broken.yaml",
        }
        assert repo.watch.trouble is None


async def test_one_look_that_is_refused_ends_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watched(tmp_path, events=False) as repo:

        def refused(pause: Pause) -> list[Path]:
            raise OSError(errno.EIO, os.strerror(errno.EIO), "desired")

        (repo.layout.models / "broken.yaml").write_text("name: [")
        monkeypatch.setattr(repo.watch._desired, "changed", refused)
        await repo.watch.rescan()
        assert [problem.path for problem in repo.watch.problems()] == ["models/broken.yaml"]
        assert "desired: Input/output error" in str(repo.watch.trouble)
        await repo.watch._look_at([str(repo.layout.models / "broken.yaml")])
        assert repo.watch.trouble is not None, "what can be looked at says nothing of the rest"
        monkeypatch.undo()
        await repo.watch.rescan()
        assert repo.watch.trouble is None
