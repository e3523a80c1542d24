"""Runs one command and turns its errors into a line and an exit code.

Exit codes: 0 all is well, 1 it failed, 2 wrong usage, 130 interrupted, 141 nobody reads what is
printed any more (nothing is said then); a worker has more of them.
With `--json` an error is one object on stderr, `{"error", "code"}`.
"""

from __future__ import annotations

import io
import json
import os
import re
import sys
from contextlib import suppress
from typing import cast

import typer

from datastore.errors import AlreadyExists, SwampError, alone
from datastore.unicode_text import is_unicode
from swamp.cli.app import app
from swamp.cli.unread import UNREAD, ToldUnread, into_nowhere
from swamp.cli.usage import plain_usage

OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130

# The parser's own errors: typer carries the class but does not export it.
_ParserError = cast("type[Exception]", typer.BadParameter.__mro__[2])


def run(given: list[str]) -> int:
    """Run one command; its exit code. Errors have been printed."""
    _have_standard_files()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that lacks a character must not end a command, nor half of a worker.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        code = _run(given, as_json="--json" in given)
        sys.stdout.flush()
    except BrokenPipeError as error:
        # Whoever read our output has gone. Python would complain once more at exit without this.
        into_nowhere(sys.stdout.fileno())
        return FAILED if isinstance(error, ToldUnread) else UNREAD
    return code


def _have_standard_files() -> None:
    """What was closed before the start (`>&-`) goes nowhere: no other file may get its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            with suppress(OSError):
                # The lowest number that is free.
                os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(number, "r" if number == 0 else "w"))  # noqa: SIM115


def _no_utf8(arguments: list[str]) -> str | None:
    """What of the command could neither be sent to a server nor be written to a file."""
    named = [(name, value) for name, value in os.environ.items() if name.startswith("SWAMP_")]
    for number, text in enumerate(arguments):
        before = arguments[number - 1] if number else ""
        is_option = before.startswith("--") and is_unicode(before)
        named.append((f"the value of {before}" if is_option else f"argument {number + 1}", text))
    # The text itself may be a secret.
    return next((what for what, text in named if not is_unicode(text)), None)


def _run(arguments: list[str], as_json: bool) -> int:
    what = _no_utf8(arguments)
    if what is not None:
        return _fail(f"{what} is not UTF-8", USAGE, "usage", as_json)
    try:
        result = _call(arguments)
    except _ParserError as error:
        return _fail(_usage(error), USAGE, "usage", as_json)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except SwampError as error:
        run_id = getattr(error, "run_id", None)
        code = getattr(error, "exit_code", FAILED)
        return _fail(str(error), code, _code(error), as_json, run_id)
    except SystemExit as done:
        if isinstance(done.__context__, BrokenPipeError):
            # The parser has an end of its own for a reader that has gone.
            raise done.__context__ from None
        # The options for the shell's completion end that way.
        return done.code if isinstance(done.code, int) else OK
    except BrokenPipeError:
        raise
    except OSError as error:
        return _fail(_system(error), FAILED, "system", as_json)
    return result if isinstance(result, int) else OK


def _call(arguments: list[str]) -> object:
    """What the command returns; its errors without the groups that task groups make of them."""
    parser = typer.main.get_command(app)
    try:
        return parser.main(args=arguments, prog_name="swamp", standalone_mode=False)
    except BaseExceptionGroup as group:
        raise alone(group) from None


def _fail(message: str, code: int, name: str, as_json: bool, run: str | None = None) -> int:
    told = {"error": message, "code": name} | ({"runId": run} if run is not None else {})
    line = json.dumps(told, ensure_ascii=False) if as_json else f"Error: {message}"
    try:
        print(line, file=sys.stderr, flush=True)
    except BrokenPipeError:
        # It is an error all the same. Without this Python would have an exit code of its own.
        into_nowhere(sys.stderr.fileno())
    return code


def _usage(error: Exception) -> str:
    message = plain_usage(" ".join(str(error.format_message()).split()))  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    path = "swamp" if context is None else context.command_path
    return f"{message.rstrip('.')} (see `{path} --help`)"


def _code(error: SwampError) -> str:
    """The server's word for it, else the name of the class in snake case."""
    if isinstance(error, AlreadyExists):
        return "exists"
    known = getattr(error, "code", None)
    return known if isinstance(known, str) else _snake(type(error).__name__)


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _system(error: OSError) -> str:
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if error.filename else reason
