"""Names of the copies that `forEach` makes: of one line, short, each one of a kind."""

from __future__ import annotations

from typing import Any

import pytest

from controllers.expressions import Scope
from controllers.run.plan import COPIES_MOST, COPY_NAME_MAX, PlanError, copies
from datastore.definitions.workflow import Step
from datastore.kinds.dispatch_name import file_name


def step(name: str) -> Step:
    return Step.model_validate(
        {
            "name": name,
            "forEach": {"item": "x", "in": "${{ inputs.xs }}"},
            "task": {"type": "model_method", "modelIdOrName": "m", "methodName": "execute"},
        }
    )


def names(template: str, xs: Any) -> list[str]:
    return [copy.name for copy in copies(step(template), Scope(inputs={"xs": xs}))]


@pytest.mark.parametrize(
    ("template", "xs", "expected"),
    [
        ("probe", ["a", 3, True], ["probe-a", "probe-3", "probe-True"]),
        ("probe", [{"k": 1}, {"k": 2}], ["probe-0", "probe-1"]),
        ("probe", {"eu": 1, "us": 2}, ["probe-eu", "probe-us"]),
        ("p-${{ self.x }}-q", ["a", "b"], ["p-a-q", "p-b-q"]),
        ("p-${{ self.x.k }}", [{"k": "v"}], ["p-v"]),
        ("p-${{ self.x.nope }}", [{"k": "v"}], ["p-0"]),
        ("probe", ["a", "a"], ["probe-a-0", "probe-a-1"]),
        ("${{ self.x }}", ["w", "w", "w-0", "w-0-2"], ["w-0-3", "w-1", "w-0", "w-0-2"]),
        ("${{ self.x }}", ["w", "w", "w-1", "w-1"], ["w-0", "w-1", "w-1-2", "w-1-3"]),
        ("probe", [], []),
        ("probe", ["é\nz\x1b[31m"], ["probe-é?z?[31m"]),
    ],
)
def test_copies_are_named_for_their_items(template: str, xs: Any, expected: list[str]) -> None:
    assert names(template, xs) == expected


def test_a_long_value_gives_a_short_name_that_differs_from_its_neighbour() -> None:
    long = names("probe", ["y" * 500 + "1", "y" * 500 + "2"])
    assert len(set(long)) == 2
    assert all(len(name) <= COPY_NAME_MAX for name in long)


def test_more_items_than_steps_can_be_are_refused() -> None:
    assert len(names("probe", list(range(COPIES_MOST)))) == COPIES_MOST
    with pytest.raises(PlanError, match="goes over 100,001 items, at most 100,000 are started"):
        names("probe", list(range(COPIES_MOST + 1)))


def test_parts_of_file_names_never_collide() -> None:
    odd = ["a.b", "a-b", "a b", "a_b", "é", "x" * 70, "x" * 71, "../x", "A"]
    assert len({file_name(part) for part in odd}) == len(odd)
    assert all(file_name(part).isascii() and "." not in file_name(part) for part in odd)
