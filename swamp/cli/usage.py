"""What the parser of the command line finds wrong, in our words: what was given, what fits."""

from __future__ import annotations

import re

_INVALID = re.compile(
    r"Invalid value(?: for '(?P<option>[^' ]+)'[^:(]*(?:\(env var: '[^']*'\))?)?: (?P<problem>.*)\Z"
)
_CHOICE = re.compile(r"(?:Value error, )?(?P<given>'.*?') is not one of (?P<known>'.*')\.?\Z")


def plain_usage(message: str) -> str:
    """`--auth 'x': expected one of none, token`; messages of our own as they are."""
    found = _INVALID.match(message)
    if found is None:
        return message
    problem, option = found["problem"], found["option"]
    choice = _CHOICE.match(problem)
    if choice is not None:
        known = choice["known"].replace("'", "")
        return f"{option} {choice['given']}: expected one of {known}"
    is_ours = option is None or problem.startswith(option)
    return problem if is_ours else f"{option}: {problem}"
