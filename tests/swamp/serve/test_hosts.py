"""A page whose name was made to lead here is told apart by the host that it asks for."""

from __future__ import annotations

import pytest

from swamp.serve.hosts import is_here


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:9090", "127.0.0.1", "127.8.9.10:1", "[::1]:9090", "[::1]", "localhost",
        "LocalHost:9090", "localhost.:9090", "swamp.localhost:9090", "fleet.test:9090",
        "Fleet.Test",
    ],
)  # fmt: skip
def test_names_of_this_machine(host: str) -> None:
    assert is_here(host, "fleet.test")


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:9090", "evil.example", "127.0.0.1.evil.example", "localhost.evil.example",
        "evil-localhost", "192.0.2.1", "0.0.0.0:9090", "[2001:db8::1]:9090", "", ":9090", "[::1",
        "evil.example@127.0.0.1", "127.0.0.1:9090@evil.example", "127.0.0.1 evil.example", "\udcff",
        "127.0.0.1/..", "fleet.test.evil.example",
    ],
)  # fmt: skip
def test_other_names(host: str) -> None:
    assert not is_here(host, "fleet.test")
