"""Says in a person's words what CEL found wrong with an expression, and where."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from controllers.expression_paths import (
    LATER_ROOTS,
    NAME,
    ROOTS,
    VAULT,
    ExpressionError,
    blanked,
    failure,
    resolve,
    unknown_root,
)
from controllers.expression_references import as_written

_PROBLEM = re.compile(r"<input>:(-?\d+):(-?\d+): (.*)")
_UNDECLARED = re.compile(r"undeclared reference to '([^']+)'")
_OVERLOAD = re.compile(
    r"(?:No matching overloads found : |for ')_?(\S+?)_?(?:\(|' applied to '\()(.*)\)"
)
_UNEXPECTED = re.compile(
    r"(?:mismatched|extraneous) input|no viable alternative at input|token recognition error at:"
)
_MISSING_KEY = re.compile(r'Key not found in map : "(.*)"$')
_ROOTED = re.compile(rf"(?<![\w.])(?:{'|'.join(ROOTS)})(?:\.{NAME})+")

_WORDS = (
    ("Applying SELECT to non-message type", "takes a field of something that is not a map"),
    ("basic_string: construction from null is not valid", "reads text that is not valid Unicode"),
    ("No matching overloads found : _&&_", "`&&` takes only booleans"),
    ("No matching overloads found : _||_", "`||` takes only booleans"),
    ("Key not found in map : ", "a map has no "),
    ("Index error: ", "wrong index: "),
)

_TOO_DEEP = "is nested or chained too deeply (CEL stops at 32 levels); split it up"
_TOO_LONG = "loops over more than 10,000 items in all; use forEach, or a shorter list"


def compile_failure(source: str, report: str) -> ExpressionError:
    """The error for what CEL's compiler reported."""
    if "recursion" in report:
        return failure(source, _TOO_DEEP)
    problems = [(int(line), int(column), text) for line, column, text in _PROBLEM.findall(report)]
    if not problems:
        return failure(source, _stripped(report))
    unknown = [name for problem in problems if (name := _unknown_name(source, *problem))]
    if unknown:
        later = (name for name in unknown if name in (*LATER_ROOTS, VAULT))
        return unknown_root(source, next(later, unknown[0]))
    line, column, text = problems[0]
    before = source.split("\n")[line - 1][:column] if line > 0 else ""
    column -= len(before) - len(as_written(before))
    where = f"character {column}" if line == 1 else f"line {line}, character {column}"
    return failure(source, f"{_readable(text)}, at {where}")


def run_failure(source: str, report: str, roots: Mapping[str, Any]) -> ExpressionError:
    """The error for what CEL reported while it evaluated; it gives no position then."""
    if "Iteration budget" in report:
        return failure(source, _TOO_LONG)
    if "bad_alloc" in report:
        return failure(source, "needs too much memory")
    missing = _MISSING_KEY.search(report)
    return (missing and _missing_key(source, missing[1], roots)) or failure(
        source, _readable(_stripped(report))
    )


def _unknown_name(source: str, line: int, column: int, text: str) -> str | None:
    """The root that CEL does not know; None for another problem, also an unknown function."""
    found = _UNDECLARED.search(text)
    lines = source.split("\n")
    if found is None or lines[line - 1][column - 1 : column] == "(":
        return None
    return found[1].split(".")[0]


def _missing_key(source: str, key: str, roots: Mapping[str, Any]) -> ExpressionError | None:
    """A better answer than CEL's: the first path of the expression that lacks this very key."""
    for path in _ROOTED.findall(blanked(source)):
        keys = path.split(".")
        if key in keys[1:]:
            try:
                resolve(source, tuple(keys[: keys.index(key, 1) + 1]), roots)
            except ExpressionError as error:
                return error
    return None


def _readable(text: str) -> str:
    text = text.removeprefix("Syntax error: ").partition(" expecting ")[0]
    undeclared = _UNDECLARED.search(text)
    if undeclared:
        return f"there is no function `{undeclared[1]}`"
    overload = _OVERLOAD.search(text)
    if overload:
        convert = "convert one, for example with string() or int()"
        return f"`{overload[1]}` does not take ({overload[2]}); {convert}"
    for theirs, ours in _WORDS:
        text = text.replace(theirs, ours)
    text = _UNEXPECTED.sub("unexpected", text)
    return text.replace("unexpected '<EOF>'", "it ends too early")


def _stripped(report: str) -> str:
    """Without the status codes around it: `UNKNOWN: … [UNKNOWN]`."""
    return re.sub(r"^[A-Z_]+: | \[[A-Z_]+\]$", "", report.strip())
