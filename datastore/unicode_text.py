r"""Text that no file and no message can hold: Python's strings and JSON's escapes know more.

A byte of an argument or a variable that is no UTF-8 becomes such a character, and so does
`"\ud800"` in JSON. What comes in with one is refused at the door: it could neither be sent to a
worker nor written as YAML.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any

_LONE = re.compile("[\ud800-\udfff]")
_FILLER = "\N{REPLACEMENT CHARACTER}"
WHAT = "holds a character that is no Unicode (a lone surrogate)"


def is_unicode(text: str) -> bool:
    """Whether the text can be written as UTF-8."""
    return text.isascii() or _LONE.search(text) is None


def lone_surrogate(value: Any) -> str | None:
    """Where in plain JSON values the first text is that no UTF-8 can hold, as `a.b[0]`; or None.

    Of what is good only the writing of it as JSON is waited for.
    """
    with suppress(UnicodeEncodeError, RecursionError):
        json.dumps(value, ensure_ascii=False).encode()
        return None
    rest = [("", value)]
    while rest:
        at, one = rest.pop()
        if isinstance(one, str) and not is_unicode(one):
            return _LONE.sub(_FILLER, at) or "the text"
        if isinstance(one, dict):
            for key, inner in reversed(one.items()):
                rest.append((f"{at}.{key}" if at else str(key), inner))
                if not is_unicode(str(key)):
                    rest.append((f"a name in {at}" if at else "a name", key))
        elif isinstance(one, (list, tuple)):
            rest += [(f"{at}[{number}]", one[number]) for number in reversed(range(len(one)))]
    return None


def made_unicode(value: Any) -> Any:
    """Plain JSON values, each such character replaced: for what has to be written all the same."""
    if isinstance(value, str):
        return _LONE.sub(_FILLER, value)
    if isinstance(value, dict):
        return {made_unicode(key): made_unicode(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [made_unicode(one) for one in value]
    return value
