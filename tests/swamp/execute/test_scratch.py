"""What a process leaves that dies without a guard is ended by the next one; the living are not."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from swamp.execute import scratch
from swamp.execute.scratch import IDENTITY, take_scratch

OWNER = """
import subprocess, sys
from pathlib import Path
from swamp.execute.processes import MARK_VARIABLE
from swamp.execute import scratch
from swamp.execute.scratch import take_scratch
own = take_scratch(Path(sys.argv[1]))
(own.folder / "full").write_text("of something")
command = ["sleep", "600"]
left = subprocess.Popen(command, env={MARK_VARIABLE: f"{own.family}.0"}, start_new_session=True)
print(own.folder, left.pid, flush=True)
sys.stdin.read()
"""


class Owner:
    """A process with a scratch folder in which something runs."""

    def __init__(self, root: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER, str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        folder, left = self.process.stdout.readline().split()
        self.folder, self.left = Path(folder), int(left)

    def runs(self) -> bool:
        """Whether what it started still runs; a zombie does not."""
        try:
            stat = Path(f"/proc/{self.left}/stat").read_text()
        except FileNotFoundError:
            return False
        return stat.rpartition(")")[2].split()[0] not in ("Z", "X")

    def die(self) -> None:
        """By SIGKILL; nobody ends what it started."""
        self.process.kill()
        self.process.wait()


@pytest.fixture
def owners(tmp_path: Path) -> Iterator[tuple[Owner, Owner]]:
    both = Owner(tmp_path), Owner(tmp_path)
    yield both
    for owner in both:
        owner.die()
        if owner.runs():
            os.kill(owner.left, signal.SIGKILL)


def test_what_the_dead_left_is_ended_and_the_living_are_not_touched(
    tmp_path: Path, owners: tuple[Owner, Owner]
) -> None:
    dead, living = owners
    others = ["scratch-of-an-earlier-version", "something-else"]
    for name in others:
        (tmp_path / name).mkdir()
    dead.die()
    assert dead.runs() and dead.folder.exists(), "nobody has ended it yet"
    own = take_scratch(tmp_path)
    assert own.killed == 1
    assert not dead.runs() and not dead.folder.exists()
    assert living.runs() and (living.folder / "full").exists()
    own.remove()
    assert {path.name for path in tmp_path.iterdir()} == {living.folder.name, *others}


@pytest.mark.parametrize("refused", ["the folder", "its lock"])
def test_what_the_dead_left_goes_also_where_there_is_no_room(
    tmp_path: Path, owners: tuple[Owner, Owner], monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """It may be what fills the disk, and the server tries again for ever: nothing may pile up."""
    dead, living = owners
    dead.die()

    make, open_ = Path.mkdir, scratch._open
    known = {path.name for path in tmp_path.iterdir()}

    def refuse(folder: Path, *rest: Any, **options: Any) -> None:
        if folder == tmp_path:
            return make(folder, *rest, **options)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))

    def refuse_lock(folder: Path) -> int:
        if folder == tmp_path or folder.name in known:
            return open_(folder)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(folder))

    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as full:
        if refused == "the folder":
            full.setattr(Path, "mkdir", refuse)
        else:
            full.setattr(scratch, "_open", refuse_lock)
        with pytest.raises(OSError, match=r"No space left|Too many open files"):
            take_scratch(tmp_path)
    assert not dead.runs() and not dead.folder.exists()
    assert living.runs()
    assert len(os.listdir("/proc/self/fd")) == before
    take_scratch(tmp_path).remove()


@pytest.mark.parametrize("made_by", ["cp -a", "cp -r", "copytree"])
def test_a_copy_of_a_living_one_is_removed_and_nothing_is_ended(
    tmp_path: Path, owners: tuple[Owner, Owner], made_by: str
) -> None:
    """Regression: nobody locks a copy, so its owner looked dead, and what that ran was killed."""
    root, copied = tmp_path, tmp_path.with_name(f"{tmp_path.name}-copied")
    if made_by == "copytree":
        shutil.copytree(root, copied)
    else:
        subprocess.run([*made_by.split(), root, copied], check=True)
    own = take_scratch(copied)
    assert (own.killed, own.copies) == (0, 2)
    assert all(owner.runs() and (owner.folder / "full").exists() for owner in owners)
    assert list(copied.iterdir()) == [own.folder]
    own.remove()

    # Also where the one that was copied is dead by now: who copies tells nothing of that.
    owners[0].die()
    again = take_scratch(root)
    assert (again.killed, again.copies) == (1, 0)
    again.remove()


def test_a_copy_that_could_not_be_removed_is_still_a_copy(
    tmp_path: Path, owners: tuple[Owner, Owner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: its removal was cut short, or came to nothing as it held what cannot be removed.
    It no longer said which one it was then, and the next start killed what the original ran."""
    copied = tmp_path.with_name(f"{tmp_path.name}-copied")
    subprocess.run(["cp", "-a", tmp_path, copied], check=True)
    remove = os.unlink

    def refuse(path: Any, *rest: Any, **options: Any) -> None:
        if os.path.basename(path) == "full":
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))
        remove(path, *rest, **options)

    with monkeypatch.context() as kept:
        kept.setattr(os, "unlink", refuse)
        own = take_scratch(copied)
    for _ in range(2):
        assert (own.killed, own.copies) == (0, 2)
        assert all(owner.runs() for owner in owners)
        own.remove()
        own = take_scratch(copied)
    assert (own.killed, own.copies) == (0, 0)
    own.remove()


def test_a_copy_that_nothing_may_be_removed_from_is_still_a_copy(
    tmp_path: Path,
    owners: tuple[Owner, Owner],
    permission_bits: Callable[[], AbstractContextManager[None]],
) -> None:
    """Regression: it was emptied, and stayed without what says which one it is."""
    copied = tmp_path.with_name(f"{tmp_path.name}-closed")
    subprocess.run(["cp", "-a", tmp_path, copied], check=True)
    copied.chmod(0o555)
    with permission_bits():
        for _ in range(3):
            with pytest.raises(PermissionError):
                take_scratch(copied)
    assert all(owner.runs() for owner in owners)
    copied.chmod(0o755)
    own = take_scratch(copied)
    assert (own.killed, own.copies) == (0, 2)
    assert all(owner.runs() for owner in owners)
    own.remove()
    assert list(copied.iterdir()) == []


def test_a_removal_that_was_cut_short_at_its_end_is_finished(tmp_path: Path) -> None:
    left = tmp_path / f"removed-scratch-{'0' * 32}"
    left.mkdir()
    (left / IDENTITY).write_text("1:2\n")
    strangers = tmp_path / "removed-by-somebody"
    strangers.mkdir()
    own = take_scratch(tmp_path)
    assert (own.killed, own.copies) == (0, 0)
    own.remove()
    assert list(tmp_path.iterdir()) == [strangers]


def test_a_folder_that_was_moved_is_the_one_it_was(
    tmp_path: Path, owners: tuple[Owner, Owner]
) -> None:
    dead, living = owners
    moved = tmp_path.with_name(f"{tmp_path.name}-moved")
    tmp_path.rename(moved)
    dead.die()
    own = take_scratch(moved)
    assert (own.killed, own.copies) == (1, 0)
    assert living.runs()
    own.remove()


def test_one_of_an_earlier_version_does_not_say_which_it_is(
    tmp_path: Path, owners: tuple[Owner, Owner]
) -> None:
    dead, _ = owners
    (dead.folder / IDENTITY).unlink()
    dead.die()
    own = take_scratch(tmp_path)
    assert (own.killed, own.copies) == (1, 0)
    own.remove()


@pytest.mark.parametrize("content", ["", "1:2\n", "garbage"])
def test_what_is_no_proof_ends_nothing(
    tmp_path: Path, owners: tuple[Owner, Owner], content: str
) -> None:
    dead, _ = owners
    (dead.folder / IDENTITY).write_text(content)
    dead.die()
    own = take_scratch(tmp_path)
    assert (own.killed, own.copies) == (0, 1)
    assert dead.runs() and not dead.folder.exists()
    own.remove()


def test_many_that_begin_at_once_do_not_take_each_other_for_dead(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        taken = list(pool.map(lambda _: take_scratch(tmp_path), range(64)))
    assert all(one.folder.is_dir() for one in taken)
    assert len({one.family for one in taken}) == 64
    for one in taken:
        one.remove()
    assert list(tmp_path.iterdir()) == []
