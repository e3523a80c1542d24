"""The promises of the design, on 500 simulated fleets in which everything goes wrong.

`SWAMP_SIM_FIRST` and `SWAMP_SIM_SEEDS` choose other seeds; a failure prints how to replay it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sim.fleet import SimFleet
from sim.mutants.planted import PLANTED
from sim.world import Violation

FIRST = int(os.environ.get("SWAMP_SIM_FIRST", "0"))
COUNT = int(os.environ.get("SWAMP_SIM_SEEDS", "500"))
CHUNK = 25
FULL_OF = 5
"""For so many fleets there is one in which nothing but the disk is at fault."""
COMMON_SEEDS = 50
RARE_SEEDS = 500
HERE = Path(__file__).parent


def kept_seeds() -> list[int]:
    lines = (HERE / "seeds.txt").read_text().splitlines()
    return [int(line.split()[0]) for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT, CHUNK))
def test_a_fleet_keeps_its_promises_whatever_goes_wrong(first: int) -> None:
    for seed in range(first, min(first + CHUNK, FIRST + COUNT)):
        SimFleet(seed).run()


@pytest.mark.parametrize("first", range(FIRST, FIRST + COUNT // FULL_OF, CHUNK))
def test_no_lease_is_lost_for_a_full_disk_alone(first: int) -> None:
    for seed in range(first, min(first + CHUNK, FIRST + COUNT // FULL_OF)):
        SimFleet(seed, only_disk=True).run()


@pytest.mark.parametrize("seed", kept_seeds())
def test_a_seed_that_once_found_a_bug_finds_none(seed: int) -> None:
    SimFleet(seed).run()


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_caught(bug: str) -> None:
    planted = PLANTED[bug]
    with planted.plant():
        for seed in [*kept_seeds(), *range(RARE_SEEDS)] if planted.rare else range(COMMON_SEEDS):
            try:
                SimFleet(seed, resync_s=planted.resync_s, only_disk=planted.only_disk).run()
            except Violation as caught:
                problem = str(caught).splitlines()[0]
                print(f"{bug}: caught by {problem}")
                assert re.search(planted.shows_as, problem)
                return
    pytest.fail(f"no seed notices the planted bug: {bug}")


def test_a_seed_always_tells_the_same_story() -> None:
    first, second = SimFleet(7), SimFleet(7)
    first.run()
    second.run()
    assert first.world.trace == second.world.trace


def test_a_story_does_not_depend_on_the_order_of_sets() -> None:
    script = (
        "import hashlib; from sim.fleet import SimFleet\n"
        "for seed in range(3, 8):\n"
        "    fleet = SimFleet(seed)\n"
        "    fleet.run()\n"
        "    print(hashlib.sha256('\\n'.join(fleet.world.trace).encode()).hexdigest())\n"
    )
    stories = set()
    for hash_seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(HERE.parent)}
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=environment,
            cwd=HERE.parents[1],
            capture_output=True,
            text=True,
            check=True,
        )
        stories.add(done.stdout)
    assert len(stories) == 1
