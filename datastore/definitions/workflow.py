"""Workflows: jobs of steps, what they depend on, and where they may run.

The format is that of the seeds, strict. `${{ … }}` may stand in any string and is not looked at
here. A parsed workflow keeps what was written (`source`), from which it can be rebuilt.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PrivateAttr, model_validator

from datastore.definitions import inputs as inputs_of
from datastore.definitions.conditions import Condition
from datastore.definitions.inputs import Inputs
from datastore.definitions.problems import shown
from datastore.definitions.schema import (
    NAME_MAX_LENGTH,
    REMOVED,
    DefinitionName,
    Labels,
    PositiveSeconds,
    Priority,
    Seconds,
    Text,
    Uuid,
    Written,
    is_expression,
    is_not_empty,
    refusal,
    with_id,
)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]*\Z")
_EXPRESSION = re.compile(r"\$\{\{.*?\}\}")
_WHOLE_EXPRESSION = re.compile(r"\s*\$\{\{.*\}\}\s*\Z", re.DOTALL)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_PLACEMENT_KEYS = ("target", "labels", "platform", "queueTimeout")
_NOT_A_TASK_KEY = dict.fromkeys(_PLACEMENT_KEYS, "it belongs to a step, a job or the workflow")


def _is_name(text: str) -> str:
    if len(text) > NAME_MAX_LENGTH or not _NAME.match(text):
        raise refusal(
            f"must be at most {NAME_MAX_LENGTH} letters, digits, spaces, '.', '_' and '-', "
            f"starting with a letter or digit, found {shown(text)}"
        )
    return text


def _is_step_name(text: str) -> str:
    if is_expression(text):
        # What the expression becomes is checked where it is evaluated; `a` stands in for it.
        _is_name(_EXPRESSION.sub("a", text))
        return text
    return _is_name(text)


def _is_variable(text: str) -> str:
    if not _VARIABLE.match(text):
        raise refusal(f"must be a name such as 'host', found {shown(text)}")
    return text


def _is_whole_expression(text: str) -> str:
    if not _WHOLE_EXPRESSION.match(text):
        raise refusal(
            f'must be one expression such as "${{{{ inputs.hosts }}}}", found {shown(text)}'
        )
    return text


def _is_dependency(key: str) -> BeforeValidator:
    def check(value: Any) -> Any:
        if not isinstance(value, dict):
            name = value if isinstance(value, str) else "name"
            raise refusal(
                f"must look like {{{key}: {name}, condition: {{type: succeeded}}}}, "
                f"found {shown(value)}"
            )
        return value

    return BeforeValidator(check)


class Placed(Written):
    """The keys that say where steps run; workflow, job and step have them, the inner one wins."""

    target: Text | None = None
    labels: Labels | None = None
    platform: Text | None = None
    queue_timeout_s: Seconds | None = Field(default=None, alias="queueTimeout")
    """How long a step may wait for a worker, seconds; 0 waits for ever."""
    priority: Priority | None = None
    concurrency: int | None = Field(default=None, ge=0)
    """How many steps may run at once; 0 is no limit."""
    timeout_s: PositiveSeconds | None = Field(default=None, alias="timeout")
    """How long the execution may take, seconds."""


class JobDependency(Written):
    """Another job, and how it must have ended."""

    title: ClassVar[str] = "dependency"
    job: Text
    condition: Condition | None = None


class StepDependency(Written):
    """Another step of the same job, and how it must have ended."""

    title: ClassVar[str] = "dependency"
    step: Text
    condition: Condition | None = None


class ForEach(Written):
    """One step for each value: `self.<item>` is the value."""

    title: ClassVar[str] = "forEach"
    item: Annotated[str, AfterValidator(_is_variable)]
    values: Annotated[str, AfterValidator(_is_whole_expression)] = Field(alias="in")


class Task(Written):
    """A method of a model, named by its definition or by a type and a new name."""

    title: ClassVar[str] = "task"
    not_yet: ClassVar[frozenset[str]] = frozenset({"globalArgs"})
    hints: ClassVar[dict[str, str]] = (
        REMOVED | _NOT_A_TASK_KEY | {"arguments": "arguments of the method go into 'inputs'"}
    )

    type: Literal["model_method"]
    model_id_or_name: Text | None = None
    model_type: Text | None = None
    model_name: Text | None = None
    method_name: Text
    inputs: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _is_of_a_known_type(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        kind = value.get("type")
        if kind in ("workflow", "manual_approval", "assert"):
            raise refusal(f"must be 'model_method': '{kind}' is not supported yet", "type")
        if kind == "shell":
            raise refusal("must be 'model_method': for 'shell' use a model command/shell", "type")
        if is_expression(value.get("inputs")):
            raise refusal("as one expression is not supported yet: write a mapping", "inputs")
        return value

    @model_validator(mode="after")
    def _names_one_model(self) -> Self:
        by_type = self.model_type is not None or self.model_name is not None
        if self.model_id_or_name is not None and by_type:
            raise refusal("takes either 'modelIdOrName' or 'modelType' and 'modelName'")
        if self.model_id_or_name is None and not (self.model_type and self.model_name):
            raise refusal("needs 'modelIdOrName', or 'modelType' and 'modelName'")
        return self


class Step(Placed):
    """One execution, or with `forEach` one for each value."""

    title: ClassVar[str] = "step"
    not_yet: ClassVar[frozenset[str]] = frozenset({"guard", "dataOutputOverrides", "writes"})

    name: Annotated[str, AfterValidator(_is_step_name)]
    description: str | None = None
    task: Task
    for_each: ForEach | None = None
    depends_on: tuple[Annotated[StepDependency, _is_dependency("step")], ...] = Field(
        default=(), strict=False
    )
    weight: int = 0
    """Breaks ties between steps that are ready at once: lighter first, then by name."""
    allow_failure: bool = False

    @model_validator(mode="after")
    def _name_fits_for_each(self) -> Self:
        if is_expression(self.name) and self.for_each is None:
            raise refusal("may hold an expression only with 'forEach'", "name")
        return self


class Job(Placed):
    """Steps that belong together and wait for other jobs together."""

    title: ClassVar[str] = "job"
    not_yet: ClassVar[frozenset[str]] = frozenset({"writes"})

    name: Annotated[str, AfterValidator(_is_name)]
    description: str | None = None
    steps: Annotated[tuple[Step, ...], AfterValidator(is_not_empty)] = Field(strict=False)
    depends_on: tuple[Annotated[JobDependency, _is_dependency("job")], ...] = Field(
        default=(), strict=False
    )
    weight: int = 0
    affinity: bool = False
    """Whether all its placed steps must run on one worker."""


class Workflow(Placed):
    """A workflow as it is in force."""

    title: ClassVar[str] = "workflow"
    not_yet: ClassVar[frozenset[str]] = frozenset({"trigger", "reports", "writes"})

    id: Uuid
    name: DefinitionName
    description: str | None = None
    tags: dict[str, str] = Field(default_factory=dict)
    inputs: Inputs | None = None
    jobs: Annotated[tuple[Job, ...], AfterValidator(is_not_empty)] = Field(strict=False)
    version: int = Field(default=1, ge=0)
    affinity: bool = False
    """Whether all placed steps of a run must run on one worker."""
    _source: dict[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _has_an_id(cls, value: Any) -> Any:
        return with_id("workflow", value)

    @property
    def source(self) -> dict[str, Any]:
        """The document as written, plain JSON values; treat it as read-only."""
        return self._source


def workflow_from_source(source: dict[str, Any]) -> Workflow:
    """The workflow of a document that was parsed before."""
    workflow = Workflow.model_validate(source)
    workflow._source = source
    return workflow


def resolve_inputs(workflow: Workflow, given: Mapping[str, Any]) -> dict[str, Any]:
    """The values a run of it starts with; InputError, see `inputs.resolve`."""
    return inputs_of.resolve(workflow.inputs, given, f"workflow '{workflow.name}'")
