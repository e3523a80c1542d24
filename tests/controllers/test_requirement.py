import pytest

from controllers.requirement import describe, requirement
from datastore.kinds import Placement


@pytest.mark.parametrize(
    ("placement", "sentence", "cell"),
    [
        (Placement(), "any worker", "any worker"),
        (Placement(target="t1"), "target 't1'", "target=t1"),
        (Placement(labels={"pool": "worker"}), "labels pool=worker", "pool=worker"),
        (Placement(platform="linux"), "platform 'linux'", "platform=linux"),
        (
            Placement(labels={"zone": "b", "pool": "gpu"}, platform="linux/x86_64"),
            "labels pool=gpu,zone=b and platform 'linux/x86_64'",
            "pool=gpu, zone=b, platform=linux/x86_64",
        ),
    ],
)
def test_a_placement_in_words(placement: Placement, sentence: str, cell: str) -> None:
    assert describe(placement) == sentence
    assert requirement(placement) == cell


def test_a_target_decides_alone_and_so_is_described_alone() -> None:
    placement = Placement(target="t1", labels={"pool": "a"}, platform="linux")
    assert describe(placement) == "target 't1'"
    assert requirement(placement) == "target=t1, pool=a, platform=linux"
