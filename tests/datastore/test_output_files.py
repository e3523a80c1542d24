"""Outputs on disk: versions that are whole or not there, and never change."""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import threading
from pathlib import Path
from typing import Any

import pytest

from datastore import outputs
from datastore.errors import NotFound
from datastore.layout import Layout
from datastore.outputs import InvalidOutput, Origin, OutputFiles, StoredOutput
from open_file_limit import no_file_more

AT = "2026-11-29T16:41:31.123Z"


def origin(model: str = "probe", dispatch: str = "r.job.step.1") -> Origin:
    return Origin(model, "r", "job", "step", dispatch)


@pytest.fixture
def files(tmp_path: Path) -> OutputFiles:
    made = OutputFiles(Layout(tmp_path))
    made.load()
    return made


def keep(
    files: OutputFiles,
    data: bytes,
    name: str = "x",
    kind: str = "application/octet-stream",
    of: Origin | None = None,
) -> StoredOutput:
    upload = files.begin()
    for at in range(0, len(data), 7):
        upload.write(data[at : at + 7])
    return files.keep(upload, of or origin(), name, kind, AT)


def test_versions_count_and_keep_what_they_hold(files: OutputFiles, tmp_path: Path) -> None:
    first, second = keep(files, b"one"), keep(files, b"other")
    assert (first.version, second.version) == (1, 2)
    assert files.raw(first).read_bytes() == b"one"
    assert second.sha256 == hashlib.sha256(b"other").hexdigest()
    assert files.read("probe", "x") == second
    assert files.read("probe", "x", 1) == first
    # Another process sees the same without the index.
    other = OutputFiles(Layout(tmp_path))
    assert other.versions("probe", "x") == [1, 2]
    assert other.read("probe", "x") == second
    other.load()
    assert keep(other, b"").version == 3


def test_parallel_uploads_are_all_kept(files: OutputFiles) -> None:
    kept: list[StoredOutput] = []
    threads = [
        threading.Thread(target=lambda n=n: kept.append(keep(files, b"%d" % n))) for n in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.version for one in kept) == list(range(1, 21))
    assert sorted(files.raw(one).read_bytes() for one in kept) == sorted(
        b"%d" % n for n in range(20)
    )


def test_a_version_is_never_replaced(files: OutputFiles, tmp_path: Path) -> None:
    """Even when something is there that the index does not know."""
    theirs = tmp_path / ".swamp/data/probe/x/1"
    theirs.mkdir(parents=True)
    (theirs / "raw").write_bytes(b"theirs")
    assert keep(files, b"mine").version == 2
    assert (theirs / "raw").read_bytes() == b"theirs"


def test_a_broken_upload_leaves_nothing(files: OutputFiles, tmp_path: Path) -> None:
    upload = files.begin()
    upload.write(b"half")
    upload.discard()
    files.begin().write(b"left by a crash")
    OutputFiles(Layout(tmp_path)).load()
    assert [path for path in (tmp_path / ".swamp/data").rglob("*") if path.is_file()] == []
    with pytest.raises(NotFound, match="model 'probe' has no output 'x'; it has none yet"):
        files.read("probe", "x")


def test_everything_is_synced_before_it_is_kept(
    files: OutputFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{handle}")))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    upload = files.begin()
    upload.write(b"x")
    files.keep(upload, origin(), "x", "text/plain", AT)
    assert synced == ["raw", "meta.json", upload.folder.name, "x", "probe", "data"]


@pytest.mark.parametrize(
    ("data", "kind", "value"),
    [
        (b'{"z": 1, "a": [true]}', "application/octet-stream", {"z": 1, "a": [True]}),
        (b"12\n", "application/json", 12),
        (b"12\n", "text/plain; charset=utf-8", "12\n"),
        (b"no json\n", "application/octet-stream", "no json\n"),
        (b"NaN", "application/octet-stream", "NaN"),
        (b"", "application/octet-stream", ""),
    ],
)
def test_content_is_json_or_text(files: OutputFiles, data: bytes, kind: str, value: Any) -> None:
    keep(files, data, kind=kind)
    assert files.content("probe", "x") == value


def test_content_that_cannot_be_given_says_how_to_get_it(files: OutputFiles) -> None:
    keep(files, b"\xff\xfe")
    with pytest.raises(InvalidOutput, match="is not text: use `swamp data get probe x`"):
        files.content("probe", "x")
    keep(files, b"1" * ((1 << 20) + 1))
    with pytest.raises(InvalidOutput, match="has 1048577 bytes, expressions take at most 1048576"):
        files.content("probe", "x")
    with pytest.raises(NotFound, match="output 'x' of model 'probe' has no version 9"):
        files.content("probe", "x", 9)


@pytest.mark.parametrize("part", ["meta.json", "raw"])
def test_what_cannot_be_read_just_now_is_not_damaged(
    files: OutputFiles, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that reads an output waits until a file more may be open; all else fails it."""
    keep(files, b"1")
    refusal = OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    def refuse(path: Path) -> bytes:
        if path.name == part:
            raise refusal
        return path.read_bytes()

    with monkeypatch.context() as patch:
        patch.setattr(outputs, "read_bytes", refuse)
        with pytest.raises(OSError, match="Too many open files"):
            files.content("probe", "x")
        refusal = OSError(errno.EIO, os.strerror(errno.EIO))
        with pytest.raises(InvalidOutput, match=f"data/probe/x/1/{part} cannot be read: "):
            files.content("probe", "x")
    assert files.content("probe", "x") == 1
    files.raw(files.read("probe", "x")).unlink()
    with pytest.raises(InvalidOutput, match="data/probe/x/1/raw is gone"):
        files.content("probe", "x")


def test_a_folder_that_cannot_be_read_fails_who_asks_for_it(
    files: OutputFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the error was taken for one that passes, and its run never ended."""
    keep(files, b"1", of=origin("else"))
    folder = tmp_path / ".swamp/data/probe"
    folder.symlink_to(folder)
    with pytest.raises(InvalidOutput, match="data/probe cannot be read: Too many levels"):
        files.content("probe", "x")
    scandir = os.scandir

    def refuse(path: Any) -> Any:
        if isinstance(path, Path) and path.name == "else":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return scandir(path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", refuse)
        files.load()
        with pytest.raises(InvalidOutput, match="data/else cannot be read: Permission denied"):
            files.names("else")
    files.load()
    assert files.content("else", "x") == 1


def test_a_folder_that_cannot_be_read_hides_none_of_those_beside_it(
    files: OutputFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: after a start no output of its model was found that came after it."""
    for name in ("a", "b", "c"):
        keep(files, b"1", name)
    scandir = os.scandir

    def refuse(path: Any) -> Any:
        if isinstance(path, Path) and path.name == "b":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    files.load()
    assert [files.content("probe", name) for name in ("a", "c")] == [1, 1]
    assert sorted(one.name for one in files.of_models({"probe"})) == ["a", "c"]
    with pytest.raises(InvalidOutput, match="data/probe/b cannot be read: Permission denied"):
        files.content("probe", "b")


def test_what_is_taken_back_is_the_latest_no_more(files: OutputFiles) -> None:
    """Regression: until the next start or upload `data.latest` failed for want of that version."""
    kept = keep(files, b"1")
    files.remove(keep(files, b"2"))
    assert files.read("probe", "x") == kept
    files.remove(kept)
    with pytest.raises(NotFound, match="model 'probe' has no output 'x'; it has none yet"):
        files.read("probe", "x")


def test_an_upload_that_cannot_begin_leaves_nothing(files: OutputFiles, tmp_path: Path) -> None:
    """Regression: each that was refused for want of a file to open left a folder."""
    files.begin().discard()
    with no_file_more(), pytest.raises(OSError, match="Too many open files"):
        files.begin()
    assert list((tmp_path / ".swamp/data/.incoming").iterdir()) == []


def test_an_upload_that_the_disk_does_not_take_leaves_nothing(
    files: OutputFiles, tmp_path: Path
) -> None:
    """Regression: to close its file writes what is left of a small one, which failed once more."""
    upload = files.begin()
    upload.write(b"small")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            upload.finish()
        upload.discard()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list((tmp_path / ".swamp/data/.incoming").iterdir()) == []


@pytest.mark.parametrize("folder", ["x", "probe", "data"])
@pytest.mark.parametrize("call", ["open", "fsync"])
def test_a_version_that_is_not_durable_is_none(
    files: OutputFiles, call: str, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: its upload was refused, and the next start found it."""
    kept = keep(files, b"1")
    real = getattr(os, call)

    def refuse(what: Any, *more: Any) -> Any:
        name = os.readlink(f"/proc/self/fd/{what}") if isinstance(what, int) else str(what)
        if name.endswith(f"/{folder}"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(what, *more)

    upload = files.begin()
    with monkeypatch.context() as patch:
        patch.setattr(os, call, refuse)
        with pytest.raises(OSError, match="Input/output error"):
            files.keep(upload, origin(), "x", "text/plain", AT)
    upload.discard()
    assert files.versions("probe", "x") == [kept.version]
    assert files.read("probe", "x") == kept


@pytest.mark.parametrize("name", ["", ".x", "../x", "a/b", "x" * 65, "a b", "x\n"])
def test_names_that_lead_elsewhere_are_refused(files: OutputFiles, name: str) -> None:
    with pytest.raises(InvalidOutput, match="cannot name an output"):
        keep(files, b"x", name)
    with pytest.raises(InvalidOutput):
        files.read("probe", name)


def test_a_model_of_any_name_stays_inside(files: OutputFiles, tmp_path: Path) -> None:
    keep(files, b"x", of=origin("../../a b"))
    assert files.names("../../a b") == ["x"]
    assert files.names("a b") == []
    top = tmp_path / ".swamp/data"
    assert all(path.is_relative_to(top) for path in tmp_path.rglob("raw"))
    with pytest.raises(InvalidOutput, match="too long to have outputs"):
        keep(files, b"x", of=origin("m" * 200))


def test_the_outputs_of_models_are_found_again(files: OutputFiles, tmp_path: Path) -> None:
    one, two = keep(files, b"1"), keep(files, b"2", "y", of=origin(dispatch="r.job.other.1"))
    keep(files, b"3", of=origin("else"))
    (tmp_path / ".swamp/data/probe/x/7").mkdir()
    assert list(files.of_models({"probe"})) == [one, two]
