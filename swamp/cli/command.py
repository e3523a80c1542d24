"""How commands are declared: each one takes the global options and shows examples.

The global options work before and after the command's name. A command is a function whose first
parameter is the `Console`; the options come after it.
"""

from __future__ import annotations

import functools
import gc
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.models import ArgumentInfo

from swamp.cli.console import Console
from swamp.cli.hidden_argument import hide
from swamp.cli.lazy_group import lazy_group

EXIT_CODES = (
    "Exit codes: 0 all is well, 1 it failed (the reason is on stderr), "
    "2 wrong usage, 130 interrupted, 143 by SIGTERM, 129 by SIGHUP, "
    "141 nobody reads its output any more."
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Leave out remarks and progress.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say more about what happens.")]
NoColor = Annotated[bool, typer.Option("--no-color", help="Print no colors; so does NO_COLOR.")]
RepoDir = Annotated[
    Path | None,
    typer.Option(
        "--repo-dir",
        envvar="SWAMP_REPO_DIR",
        help="Work in the repository at this folder, not at the current one.",
    ),
]
Server = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        envvar="SWAMP_SERVE_URL",
        help="Ask the server at this URL, not this repository.",
    ),
]

Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        metavar="NAME.SECRET",
        envvar="SWAMP_SERVER_TOKEN",
        help="An access token for --server; better given by SWAMP_SERVER_TOKEN.",
    ),
]
CaCert = Annotated[
    Path | None,
    typer.Option(
        "--ca-cert",
        metavar="FILE",
        envvar="SWAMP_CA_CERT",
        help="Trust the authorities in this PEM file, not the machine's.",
    ),
]

_OF_SERVER: dict[str, Any] = {"token": Token, "ca_cert": CaCert}
"""What every command takes that has `server`: how to be let in there, and whom to trust."""

_GLOBALS: dict[str, Any] = {
    "json": Json,
    "quiet": Quiet,
    "verbose": Verbose,
    "no_color": NoColor,
    "repo_dir": RepoDir,
}
_META_KEY = "swamp.console"
_KEYWORD = inspect.Parameter.KEYWORD_ONLY


@dataclass(frozen=True, slots=True)
class Help:
    """What `--help` shows of a command beside its options."""

    text: str
    examples: tuple[str, ...]

    def epilog(self) -> str:
        """Examples and exit codes; the `\\b` keeps the lines as they are."""
        lines = "\n".join(f"  {example}" for example in self.examples)
        return f"\b\nExamples:\n{lines}\n\n{EXIT_CODES}"


def group(
    help_: str, modules: Mapping[str, str] | None = None, *, completion: bool = False
) -> typer.Typer:
    """A group of commands; without a command it shows its help.

    `modules`: where its commands are declared, if they are loaded when asked for (`lazy_group`).
    `completion` adds the options that install and show the shell's completion.
    """
    app = typer.Typer(
        cls=None if modules is None else lazy_group(modules),
        help=help_,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=completion,
        invoke_without_command=True,
    )
    app.callback(help=help_, epilog=EXIT_CODES)(_globals_first)
    return app


def command(app: typer.Typer, name: str, help_: Help) -> Callable[[Callable[..., None]], None]:
    """Declare `function(console, …)` as the command `name` of `app`."""

    def declare(function: Callable[..., None]) -> None:
        @functools.wraps(function)
        def run(ctx: typer.Context, **values: Any) -> None:
            given = {name: values.pop(name) for name in _GLOBALS}
            console = _console(ctx, given)
            if "server" in values:
                console.token, console.ca_cert = values.pop("token"), values.pop("ca_cert")
                hide(console.token or "")
            if console.verbose:
                _log_more()
            gc.enable()
            function(console, **values)

        _sign(run, _options_of(function))
        app.command(name, help=help_.text, epilog=help_.epilog())(run)

    return declare


def _globals_first(ctx: typer.Context, **given: Any) -> None:
    console = _console(ctx, given)
    if ctx.invoked_subcommand is None:
        if console.json:
            raise typer.BadParameter("a command is missing", ctx=ctx)
        typer.echo(ctx.get_help())
        raise typer.Exit(2)


def _console(ctx: typer.Context, given: dict[str, Any]) -> Console:
    """What was said before the command's name and after it, together."""
    console: Console = ctx.meta.setdefault(_META_KEY, Console())
    console.json |= given["json"]
    console.quiet |= given["quiet"]
    console.verbose |= given["verbose"]
    console.color &= not given["no_color"]
    console.repo_dir = given["repo_dir"] or console.repo_dir
    return console


def _log_more() -> None:
    import logging

    logging.raiseExceptions = False
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=form)


def _options_of(function: Callable[..., None]) -> list[inspect.Parameter]:
    """What a command takes on its own: all parameters after the console."""
    hints = get_type_hints(function, include_extras=True)
    own = list(inspect.signature(function).parameters.values())[1:]
    for one in own:
        for info in getattr(hints[one.name], "__metadata__", ()):
            if isinstance(info, ArgumentInfo) and info.metavar is None:
                # In the help and in errors alike.
                info.metavar = one.name.upper()
    found = [one.replace(kind=_KEYWORD, annotation=hints[one.name]) for one in own]
    if "server" in hints:
        found += [
            inspect.Parameter(name, _KEYWORD, annotation=kind, default=None)
            for name, kind in _OF_SERVER.items()
        ]
    return found


def _sign(run: Callable[..., None], own: list[inspect.Parameter]) -> None:
    """Give `run` its own options and the global ones, for typer to read."""
    parameters = [
        inspect.Parameter("ctx", _KEYWORD, annotation=typer.Context),
        *own,
        *(
            inspect.Parameter(
                name, _KEYWORD, annotation=kind, default=None if name == "repo_dir" else False
            )
            for name, kind in _GLOBALS.items()
        ),
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}


_sign(_globals_first, [])
