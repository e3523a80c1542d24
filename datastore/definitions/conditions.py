"""When a dependency counts as met: conditions on how the thing depended upon has ended."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from datastore.definitions.problems import shown
from datastore.definitions.schema import Written, refusal

Ended = Literal["succeeded", "failed", "skipped", "cancelled"]

_STATES: dict[str, frozenset[str]] = {
    "always": frozenset({"succeeded", "failed", "skipped", "cancelled"}),
    "succeeded": frozenset({"succeeded"}),
    "failed": frozenset({"failed"}),
    "completed": frozenset({"succeeded", "failed"}),
    # What was cancelled did not come to an outcome of its own, as if it had been skipped.
    "skipped": frozenset({"skipped", "cancelled"}),
}


class Condition(Written):
    """`{type: completed}`, `{type: and, conditions: [..]}`, `{type: not, condition: ..}`."""

    title: ClassVar[str] = "condition"

    type: Literal["always", "succeeded", "failed", "completed", "skipped", "and", "or", "not"]
    conditions: tuple[Condition, ...] | None = Field(default=None, strict=False)
    condition: Condition | None = None

    @model_validator(mode="before")
    @classmethod
    def _is_mapping(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            raise refusal(f"must look like {{type: succeeded}}, found {shown(value)}")
        return value

    @model_validator(mode="after")
    def _has_its_parts(self) -> Self:
        many = self.type in ("and", "or")
        if many and len(self.conditions or ()) < 2:
            raise refusal(f"of type '{self.type}' needs 'conditions' with at least two entries")
        if self.type == "not" and self.condition is None:
            raise refusal("of type 'not' needs 'condition'")
        if self.conditions is not None and not many:
            raise refusal(f"has no place in a condition of type '{self.type}'", "conditions")
        if self.condition is not None and self.type != "not":
            raise refusal(f"has no place in a condition of type '{self.type}'", "condition")
        return self


def holds(condition: Condition | None, state: Ended) -> bool:
    """Whether a dependency that ended in `state` is met; without a condition: it succeeded."""
    if condition is None:
        return state == "succeeded"
    if condition.type == "and":
        return all(holds(part, state) for part in condition.conditions or ())
    if condition.type == "or":
        return any(holds(part, state) for part in condition.conditions or ())
    if condition.type == "not":
        return not holds(condition.condition, state)
    return state in _STATES[condition.type]
