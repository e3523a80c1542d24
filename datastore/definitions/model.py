"""Model definitions: something with methods that steps call, and the arguments it brings along."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, PrivateAttr, model_validator

from datastore.definitions.inputs import Inputs
from datastore.definitions.problems import find_problems, invalid, shown
from datastore.definitions.schema import DefinitionName, Uuid, Written, refusal, with_id
from datastore.yaml_loader import Document

_TYPE = re.compile(r"@?[a-z0-9][a-z0-9_-]*(/[a-z0-9][a-z0-9_-]*)*\Z")
_TYPE_VERSION = re.compile(r"\d{4}\.\d{2}\.\d{2}\.\d+\Z")


def _is_type(text: str) -> str:
    if not _TYPE.match(text):
        raise refusal(f"must be a type such as 'command/shell', found {shown(text)}")
    return text


def _is_type_version(text: str) -> str:
    if not _TYPE_VERSION.match(text):
        raise refusal(f"must look like 2026.02.09.1, found {shown(text)}")
    return text


class Method(Written):
    """What a method is called with, unless the step says otherwise."""

    title: ClassVar[str] = "method"
    arguments: dict[str, Any] = Field(default_factory=dict)


class ModelDefinition(Written):
    """A model as it is in force."""

    title: ClassVar[str] = "model"
    not_yet: ClassVar[frozenset[str]] = frozenset({"checks", "reports", "resources"})

    type: Annotated[str, AfterValidator(_is_type)]
    type_version: Annotated[str, AfterValidator(_is_type_version)] | None = None
    id: Uuid
    name: DefinitionName
    description: str | None = None
    version: int = Field(default=1, ge=0)
    tags: dict[str, str] = Field(default_factory=dict)
    concurrency: int = Field(default=1, ge=0)
    """How many steps may call its methods at the same time, over all runs; 0 without a limit."""
    global_arguments: dict[str, Any] = Field(default_factory=dict)
    methods: dict[str, Method] = Field(default_factory=dict)
    inputs: Inputs | None = None
    _source: dict[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _has_an_id(cls, value: Any) -> Any:
        return with_id("model", value)

    @property
    def source(self) -> dict[str, Any]:
        """The document as written, plain JSON values; treat it as read-only."""
        return self._source


def parse_model(document: Document, path: str) -> ModelDefinition:
    """The model of a file; InvalidFile with the first problem and a count of the others."""
    model, problems = find_problems(ModelDefinition, document)
    if model is None:
        raise invalid(path, problems)
    model._source = document.value
    return model


def model_from_source(source: dict[str, Any]) -> ModelDefinition:
    """The model of a document that was parsed before."""
    model = ModelDefinition.model_validate(source)
    model._source = source
    return model
