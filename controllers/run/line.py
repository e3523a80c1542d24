"""Steps that the orchestrator would run itself, and whose model is held: first come first served.

They have no record before they start; after a restart they are ready again and come back here.
"""

from __future__ import annotations

from controllers.model_locks import ModelLocks
from controllers.run.graph import StepKey
from controllers.run.plan import StepPlan


class ModelLine:
    """A line per model. Plain moves; whoever takes a step starts it in the same `def`."""

    def __init__(self, locks: ModelLocks) -> None:
        self._locks = locks
        self._lines: dict[str, dict[tuple[str, StepKey], StepPlan]] = {}

    def held(self, plan: StepPlan) -> str | None:
        """Why the step cannot start now, None if it can. Nobody overtakes who stands in line."""
        model = plan.call.model_key
        if self._locks.full(model, plan.model_concurrency):
            return self._locks.held(plan.call)
        line = self._lines.get(model) if plan.model_concurrency else None
        if line:
            return f"{len(line)} steps wait for model '{plan.call.model}' already"
        return None

    def join(self, run: str, key: StepKey, plan: StepPlan) -> None:
        """The step waits for its model."""
        self._lines.setdefault(plan.call.model_key, {})[run, key] = plan

    def take(self, run: str) -> tuple[StepKey, StepPlan] | None:
        """A step of that run that can start now and goes first; it leaves the line."""
        for model, line in self._lines.items():
            (owner, key), plan = next(iter(line.items()))
            if owner == run and not self._locks.full(model, plan.model_concurrency):
                self._remove(model, owner, key)
                return key, plan
        return None

    def could_go(self) -> list[str]:
        """The runs whose steps could start now."""
        runs = []
        for model, line in self._lines.items():
            (run, _), plan = next(iter(line.items()))
            if not self._locks.full(model, plan.model_concurrency):
                runs.append(run)
        return runs

    def leave(self, run: str) -> list[StepKey]:
        """Nothing of that run waits any more; what did."""
        gone = [
            (model, key)
            for model, line in self._lines.items()
            for owner, key in line
            if owner == run
        ]
        for model, key in gone:
            self._remove(model, run, key)
        return [key for _, key in gone]

    def _remove(self, model: str, run: str, key: StepKey) -> None:
        line = self._lines[model]
        del line[run, key]
        if not line:
            del self._lines[model]
