"""Strangers have one budget wherever they wait; what they have not is for others, and for us."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from swamp.serve import accepting
from swamp.serve.accepting import Accepting
from swamp.serve.connections import CLOSING, KEPT_FREE, LEAST_LEFT, Connections, strangers_within

MOST = 200
STRANGERS = 100


class Peers:
    """Connections that were taken in; those that have to give way are closed, the oldest first."""

    def __init__(self, opened: ExitStack) -> None:
        self.counted = Connections(STRANGERS, MOST)
        self.counted.ask(self._give_way, last=True)
        self.silent: list[socket.socket] = []
        self._opened = opened

    def come(self) -> socket.socket:
        """One more, which says nothing yet."""
        ours, theirs = socket.socketpair()
        self._opened.enter_context(theirs)
        taken = self._opened.enter_context(self.counted.took(ours))
        self.silent.append(taken)
        return taken

    def come_known(self) -> socket.socket:
        """One more, which has shown a token."""
        taken = self.come()
        self.silent.remove(taken)
        self.counted.trust(taken.fileno())
        return taken

    def _give_way(self, many: int, _share: int) -> int:
        going, self.silent = self.silent[:many], self.silent[many:]
        for one in going:
            self.counted.ending(one.fileno())
            one.close()
        return len(going)


@pytest.fixture
def peers() -> Iterator[Peers]:
    with ExitStack() as opened:
        yield Peers(opened)


def test_half_of_what_may_be_open_is_for_strangers() -> None:
    limits = (10, 256, 1024, 65_536)
    assert [strangers_within(limit) for limit in limits] == [64, 64, 412, 32_668]


def test_of_strangers_the_oldest_goes_when_more_come(peers: Peers) -> None:
    first = [peers.come() for _ in range(3)]
    for _ in range(STRANGERS - 1):
        peers.come()
    assert [one.fileno() < 0 for one in first] == [True, True, False]
    assert peers.counted.strangers == STRANGERS


@pytest.mark.parametrize("known", [0, 50, 68, 69, 120, MOST - CLOSING, MOST])
def test_strangers_and_the_known_leave_what_is_kept_free(peers: Peers, known: int) -> None:
    """For any number of known ones, whether they come before the strangers or after them."""
    strangers = max(LEAST_LEFT, min(STRANGERS, MOST - CLOSING - known))
    for _ in range(known // 2):
        peers.come_known()
    for _ in range(2 * STRANGERS):
        peers.come()
    for _ in range(known - known // 2):
        peers.come_known()
    peers.come()
    assert len(peers.silent) == peers.counted.strangers == strangers
    assert peers.counted.share == strangers // 4
    assert peers.counted.is_full == (known + strangers >= MOST)
    assert 2 * strangers_within(4096) + KEPT_FREE <= 4096


def test_who_rests_is_a_stranger_again_and_who_has_gone_is_none(peers: Peers) -> None:
    answered = peers.come_known()
    for _ in range(STRANGERS):
        peers.come()
    oldest = peers.silent[0]
    peers.counted.doubt(answered.fileno())
    assert oldest.fileno() < 0
    number = answered.fileno()
    answered.close()
    peers.counted.doubt(number)
    assert peers.counted.strangers == STRANGERS - 1


def test_who_leaves_is_cut_short_before_others_give_way(peers: Peers) -> None:
    """Regression: each that was told why had two seconds more, and was counted nowhere."""
    leaves, known = peers.come(), peers.come_known()
    peers.silent.remove(leaves)
    for _ in range(STRANGERS - 1):
        peers.come()
    cut: list[socket.socket] = []
    with (
        peers.counted.leaving(leaves.fileno(), lambda: cut.append(leaves)),
        peers.counted.leaving(known.fileno(), lambda: cut.append(known)),
    ):
        assert cut == []
        oldest = peers.silent[0]
        peers.come()
        assert cut == [leaves] and oldest.fileno() >= 0
        peers.come()
        assert cut == [leaves] and oldest.fileno() < 0


# -- taking in -------------------------------------------------------------------------------------


async def taken_in(counted: Connections) -> int:
    """How many are taken in of three that come, where two have room until one is closed."""
    taken = asyncio.Queue[socket.socket]()
    with socket.create_server(("127.0.0.1", 0)) as listener, ExitStack() as opened:
        for _ in range(3):
            opened.enter_context(socket.create_connection(listener.getsockname()))
        with Accepting(listener, taken.put_nowait, connections=counted).open():
            async with asyncio.timeout(5):
                found = [opened.enter_context(await taken.get()) for _ in range(2)]
                for _ in range(20):
                    await asyncio.sleep(0)
                assert taken.empty()
                found[0].close()
                opened.enter_context(await taken.get())
    return len(found) + 1


async def test_none_is_taken_in_beyond_the_most_until_one_is_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Those that wait in the kernel take no file that is kept free."""
    monkeypatch.setattr(accepting, "PAUSE_S", 0.02)
    assert await taken_in(Connections(2, most=2)) == 3
    line = f"no connection can be taken in: {os.strerror(errno.EMFILE)}; trying again"
    assert set(caplog.messages) == {line}


async def test_where_one_is_about_to_be_closed_that_moment_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(accepting, "PAUSE_S", 60.0)
    counted = Connections(1, most=2)

    def shut_down(many: int, _share: int) -> int:
        counted.ending(next(iter(counted._strangers)))
        return 1

    counted.ask(shut_down, last=True)
    assert await taken_in(counted) == 3
    assert caplog.messages == []
