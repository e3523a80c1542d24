"""Writes docs/commands.md from the command line's own help; `make docs` runs it.

`page` answers the text without writing it, so that a test can tell whether the file is up to date.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import typer

from swamp.cli.app import app
from swamp.cli.command import _GLOBALS, EXIT_CODES

_WORDS = {int: "N", Path: "PATH"}

PAGE = Path(__file__).with_name("commands.md")

_HEAD = """\
# Commands

Written by `make docs` from the help of the commands themselves; change it there.

Every command shows its help with `--help`. {exit_codes}

Answers go to stdout, remarks and errors to stderr. With `--json` the answer is one JSON document
(one compact line per event for `serve` and `worker connect`), and an error is one object on stderr:
`{{"error": "…", "code": "…"}}`.

Durations are written `30s`, `5m`, `2h`, `1d` or `1h30m`; a bare number is seconds.

## Options of every command

They may stand before the command's name or after it.

"""


def page() -> str:
    """The whole page."""
    root: Any = typer.main.get_command(app)
    common = [option for option in root.params if option.name in _GLOBALS]
    parts = [_HEAD.format(exit_codes=EXIT_CODES), *_table(common)]
    for path, command in _commands(root, ("swamp",)):
        parts += _section(path, command)
    return "".join(parts)


def _commands(group: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, (*path, name))
        else:
            yield (*path, name), command


def _section(path: tuple[str, ...], command: Any) -> Iterator[str]:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [
        one
        for one in command.params
        if one.param_type_name == "option" and one.name not in (*_GLOBALS, "help")
    ]
    words = [*path, *map(_argument, arguments), *(["[OPTIONS]"] if options else [])]
    yield f"\n## {' '.join(path)}\n\n    {' '.join(words)}\n\n"
    yield f"{_wrapped(command.help)}\n"
    if arguments or options:
        yield "\n"
    yield from _table([*arguments, *options])
    examples = re.findall(r"^  (.+)$", command.epilog, re.MULTILINE)
    yield "\n```sh\n" + "".join(f"{line}\n" for line in examples) + "```\n"


def _argument(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    more = "..." if argument.nargs == -1 else ""
    return f"{name}{more}" if argument.required else f"[{name}]{more}"


def _table(parameters: list[Any]) -> Iterator[str]:
    if not parameters:
        return
    yield "| option | meaning |\n|---|---|\n"
    for one in parameters:
        yield f"| {_names(one)} | {_meaning(one)} |\n"


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`"
    names = ", ".join(f"`{name}`" for name in reversed(parameter.opts))
    return names if parameter.is_flag else f"{names} `{_metavar(parameter)}`"


def _metavar(option: Any) -> str:
    kind = option.type_descriptor.annotation
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(str(one.value) for one in kind).replace("|", r"\|")
    return str(option.metavar or _WORDS.get(kind, "TEXT")).replace("|", r"\|")


def _meaning(parameter: Any) -> str:
    text = " ".join((parameter.help or "").split()).replace("|", r"\|")
    default = parameter.default
    if parameter.param_type_name == "option" and parameter.required:
        text += " Required."
    if parameter.envvar:
        text += f" Also by `{parameter.envvar}`."
    if isinstance(default, (str, int)) and not isinstance(default, bool):
        text += f" Default: `{getattr(default, 'value', default)}`."
    return text


def _wrapped(text: str) -> str:
    paragraphs = (" ".join(part.split()) for part in text.split("\n\n"))
    return "\n\n".join(paragraphs).replace("<", r"\<")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
