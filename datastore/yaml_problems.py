"""What libyaml complains about, in plain words, with the position a person should look at."""

from __future__ import annotations

import yaml

from datastore.errors import Position
from datastore.plain_values import too_deep

BAD_ESCAPE = "found invalid Unicode character escape code"
_PLAIN = {
    "mapping values are not allowed in this context": (
        "a ':' where no key can be: check the indentation, or quote the value"
    ),
    "did not find expected key": (
        "expected a key here: check the indentation, and the quotes of the line above"
    ),
    "could not find expected ':'": "expected ': ' after the key of this or the line above",
    "did not find expected '-' indicator": (
        "expected '- ' here: items of a list and keys cannot share one indentation"
    ),
    "block sequence entries are not allowed in this context": (
        "a list cannot start here: put '- ' on a line of its own"
    ),
    "block mapping entries are not allowed in this context": (
        "a mapping cannot start here: put it on a line of its own"
    ),
    "did not find expected node content": "expected a value here",
    "found undefined alias": "'*' refers to an anchor that is not there: quote the value",
    "second occurrence": "the same anchor is set twice",
    "did not find expected alphabetic or numeric character": (
        "a value cannot start with '*' or '&': put it in quotes"
    ),
    "but found another document": "a second document starts here: a file holds one",
    "did not find expected <document start>": "the document has ended: nothing can follow it",
    "found unknown escape character": (
        "unknown escape in a double-quoted text: write \\\\ for a backslash, or use single quotes"
    ),
    BAD_ESCAPE: "the escape names no character",
    "found a tab character that violates indentation": "found a tab: indent with spaces",
    "found a tab character where an indentation space is expected": (
        "found a tab: indent with spaces"
    ),
    "found unexpected document indicator": "'---' inside a quoted text: close the quotes before it",
}
_FLOW_ENDS = {
    "did not find expected ',' or ']'": "this '[' list has no ']', or lacks a ',' between items",
    "did not find expected ',' or '}'": "this '{' mapping has no '}', or lacks a ',' between keys",
    "found unexpected end of stream": "this quote is never closed",
}


def plain_problem(error: yaml.YAMLError, text: str, depth: int) -> tuple[str, Position | None]:
    """One line that says what is wrong, and where. `depth`: how deep it may be nested."""
    problem = getattr(error, "problem", None)
    mark = getattr(error, "problem_mark", None)
    if problem is None or mark is None:
        return "is not valid YAML", None
    position = Position(mark.line + 1, mark.column + 1)
    opened = getattr(error, "context_mark", None)
    if problem in _FLOW_ENDS and opened is not None:
        # The parser notices at the end of the file; the person has to mend the beginning.
        return _FLOW_ENDS[problem], Position(opened.line + 1, opened.column + 1)
    if problem == "found character that cannot start any token":
        return _bad_start(text, mark.index), position
    if problem == "exceeded maximum nesting depth":
        return too_deep(depth), position
    return _PLAIN.get(problem, f"is not valid YAML: {problem}"), position


def _bad_start(text: str, index: int) -> str:
    character = text[index : index + 1]
    if character == "\t":
        return "found a tab: indent with spaces"
    return f"a value cannot start with '{character}': put it in quotes"
