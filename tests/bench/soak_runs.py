"""The runs of the soak: their workflows, and how many steps each must come to."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import fleet

CHAIN = """name: chain
labels: {pool: bench}
inputs:
  properties:
    count: {type: array, items: {type: integer}}
jobs:
  - name: build
    steps:
      - name: fetch
        task: {type: model_method, modelIdOrName: shell, methodName: execute}
      - name: compile
        dependsOn: [{step: fetch}]
        task: {type: model_method, modelIdOrName: shell, methodName: execute}
  - name: ship
    dependsOn: [{job: build}]
    steps:
      - name: s-${{ self.n }}
        forEach: {item: n, in: "${{ inputs.count }}"}
        task: {type: model_method, modelIdOrName: shell, methodName: execute}
      - name: report
        dependsOn: [{step: "s-${{ self.n }}", condition: {type: completed}}]
        task: {type: model_method, modelIdOrName: shell, methodName: execute}
"""

MIXED = """name: mixed
jobs:
  - name: job
    steps:
      - name: here
        task: {type: model_method, modelIdOrName: shell, methodName: execute}
      - name: fails
        labels: {pool: real}
        allowFailure: true
        task:
          type: model_method
          modelIdOrName: shell
          methodName: execute
          inputs: {run: "echo to be expected; exit 3"}
      - name: skipped
        dependsOn: [{step: fails}]
        task: {type: model_method, modelIdOrName: shell, methodName: execute}
"""

REAL = """echo "took ${{ run.id }}.fan.s-${{ self.n }}" >> BOOK; sleep 0.1"""


@dataclass(frozen=True)
class Shape:
    """A kind of run. `weight` is its share of all runs; `cancelled` of them are, on the way."""

    workflow: str
    counts: tuple[int, int]
    """How many items it may be given."""
    more: int = 0
    """Steps besides one per item."""
    weight: int = 1
    cancelled: float = 0.0


SHAPES = (
    Shape("fan", (20, 180), weight=60, cancelled=0.05),
    Shape("chain", (5, 40), more=3, weight=20),
    Shape("real", (5, 40), weight=10),
    Shape("mixed", (0, 0), more=3, weight=5),
    Shape("nobody", (10, 30), weight=5, cancelled=1.0),
)

QUIET = (
    Shape("fan", (10, 10)), Shape("chain", (5, 5), more=3), Shape("real", (5, 5)),
    Shape("mixed", (0, 0), more=3),
)  # fmt: skip
"""What is run, one after the other, before each look at the server: the same each time, so that the
records which retention keeps are the same too."""


@dataclass(frozen=True)
class Order:
    """A run to be started."""

    shape: Shape
    count: int
    cancel: bool

    @property
    def steps(self) -> int:
        """How many steps it has."""
        return self.count + self.shape.more

    @property
    def body(self) -> dict[str, Any]:
        """What the API is sent."""
        inputs = {"count": list(range(self.count))} if self.shape.counts[1] else {}
        return {"workflow": self.shape.workflow, "inputs": inputs}


def next_order(dice: random.Random, most: int) -> Order:
    """One more run, of at most so many steps where its shape allows."""
    [shape] = dice.choices(SHAPES, [shape.weight for shape in SHAPES])
    low, high = shape.counts
    count = dice.randint(low, max(low, min(high, most - shape.more)))
    return Order(shape, count, dice.random() < shape.cancelled)


def write_workflows(site: fleet.Site, book: str) -> None:
    """All workflows; real steps write themselves down in `book`."""
    site.workflow("fan")
    site.workflow("nobody", pool="nobody")
    site.workflow("real", run=f"'{REAL.replace('BOOK', book)}'", pool="real")
    site.repo.write("workflows/chain.yaml", CHAIN)
    site.repo.write("workflows/mixed.yaml", MIXED)
