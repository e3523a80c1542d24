"""The credential that proves a worker's death is good for one process of one worker."""

from __future__ import annotations

from swamp.serve.credentials import Credentials


def test_a_death_credential_is_good_for_its_process_alone_and_over_restarts() -> None:
    credentials = Credentials(b"k" * 32)
    mine = credentials.of_death("w1", "i1")
    assert Credentials(b"k" * 32).proves_death(mine, "w1", "i1")
    assert not credentials.proves_death(mine, "w1", "i2")
    assert not credentials.proves_death(mine, "w2", "i1")
    assert not Credentials(b"l" * 32).proves_death(mine, "w1", "i1")
    assert credentials.dispatch_of(f"death/w1/i1.{mine}") is None, "it is no dispatch's"
    for forged in ("", "é", mine[:-1], mine.upper(), "\udcff"):
        assert not credentials.proves_death(forged, "w1", "i1")
