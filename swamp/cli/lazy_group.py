"""Groups whose commands are loaded when they are asked for, so that no command pays for all others.

A table says in which module of `swamp.cli` each command is declared, in the order that `--help`
shows. Such a module has `declare(parent)`, which adds its commands, or its group, to a group.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup


class Commands(Mapping[str, Any]):
    """The commands of a group by name. One that is looked up is loaded first."""

    def __init__(self, modules: Mapping[str, str]) -> None:
        self.modules = modules
        self._loaded: dict[str, Any] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self.modules)

    def __len__(self) -> int:
        return len(self.modules)

    def __contains__(self, name: object) -> bool:
        return name in self.modules

    def __getitem__(self, name: str) -> Any:
        module = self.modules[name]
        if name not in self._loaded:
            self._loaded.update(declared(module))
        return self._loaded[name]


def lazy_group(modules: Mapping[str, str]) -> type[TyperGroup]:
    """What typer makes a group of, with the commands of this table."""

    class LazyGroup(TyperGroup):
        def __init__(self, **given: Any) -> None:
            super().__init__(**{**given, "commands": Commands(modules)})

        def list_commands(self, ctx: Any) -> list[str]:
            return list(self.commands)

    return LazyGroup


def declared(module: str) -> Mapping[str, Any]:
    """The commands that a module of `swamp.cli` declares, by name."""
    parent = typer.Typer(rich_markup_mode=None)
    import_module(f"swamp.cli.{module}").declare(parent)
    return typer.main.get_group(parent).commands
