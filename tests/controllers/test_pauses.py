"""Which waiting steps a pause holds back: those that ask for its labels, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from controllers.pauses import holds
from datastore.kinds import PauseSpec, Placement


@pytest.mark.parametrize(
    ("paused", "asks", "held"),
    [
        ({}, {"pool": "a"}, True),
        ({}, {}, True),
        ({"pool": "a"}, {"pool": "a"}, True),
        ({"pool": "a"}, {"pool": ["a"]}, True),
        ({"pool": "a"}, {"pool": "a", "zone": "x"}, True),
        ({"pool": "a"}, {"pool": "b"}, False),
        ({"pool": "a"}, {"zone": "x"}, False),
        ({"pool": "a"}, {"pool": ["a", "b"]}, False),
        ({"pool": "a"}, {"pool": {"not": ["b"]}}, False),
        ({"pool": "a", "zone": "x"}, {"pool": "a"}, False),
        ({"pool": "a", "zone": "x"}, {"pool": "a", "zone": "x"}, True),
    ],
)
def test_a_pause_holds_what_asks_for_all_its_labels(
    paused: dict[str, str], asks: dict[str, Any], held: bool
) -> None:
    """Regression: a set or a negation that another worker could meet was held back as well."""
    placement = Placement.model_validate({"labels": asks})
    assert holds(PauseSpec(labels=paused), placement) is held
