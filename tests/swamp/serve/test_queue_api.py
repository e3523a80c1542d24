"""Which waiting dispatch a person means: by id, by path, by a part; several are named."""

from __future__ import annotations

import pytest

from datastore.kinds import PENDING, Call, Pending, PendingSpec, Placement
from datastore.record import Record
from swamp.serve.answers import ApiError
from swamp.serve.queue_api import chosen


def pending(run: str, path: str) -> Pending:
    workflow, job, step = path.split("/")
    spec = PendingSpec(
        run=run, workflow=workflow, job=job, step=step, episode=1, placement=Placement(),
        call=Call(model_type="command/shell", model="m", method="execute"),
    )  # fmt: skip
    name = f"{run}.{job}.{step}.1"
    return Record(PENDING, name, name, "", spec)


WAITING = [
    pending("r1", "deploy/build/probe"),
    pending("r1", "deploy/test/probe"),
    pending("r2", "nightly/build/probe"),
    pending("r2", "nightly/build/link"),
    pending("r3", "nightly/build/link"),
]


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        ("r2.build.probe.1", "r2.build.probe.1"),
        ("nightly/build/probe", "r2.build.probe.1"),
        ("test/probe", "r1.test.probe.1"),
        ("r3", "r3.build.link.1"),
    ],
)
def test_one_is_meant(wanted: str, name: str) -> None:
    assert chosen(WAITING, wanted).name == name


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("build/probe", "deploy/build/probe (r1.build.probe.1), nightly/build/probe (r2.build"),
        ("nightly/build/link", "nightly/build/link (r2.build.link.1), nightly/build/link (r3."),
        ("probe", "3 waiting dispatches fit 'probe': "),
    ],
)
def test_several_are_named(wanted: str, said: str) -> None:
    with pytest.raises(ApiError) as refused:
        chosen(WAITING, wanted)
    assert refused.value.code == "dispatch_ambiguous"
    assert said in str(refused.value)


def test_nothing_of_that_name_waits() -> None:
    with pytest.raises(ApiError, match="nothing that waits is named 'x/y/z'"):
        chosen(WAITING, "x/y/z")
