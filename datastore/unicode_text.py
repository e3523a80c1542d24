r"""Text that no file and no message can hold: Python's strings and JSON's escapes know more.

A byte of an argument or a variable that is no UTF-8 becomes such a character, and so does
`"\ud800"` in JSON. What comes in with one is refused at the door: it could neither be sent to a
worker nor written as YAML.
"""

from __future__ import annotations

import re
from typing import Any

_LONE = re.compile("[\ud800-\udfff]")
_FILLER = "\N{REPLACEMENT CHARACTER}"
WHAT = "holds a character that is no Unicode (a lone surrogate)"


def is_unicode(text: str) -> bool:
    """Whether the text can be written as UTF-8."""
    return text.isascii() or _LONE.search(text) is None


def made_unicode(value: Any) -> Any:
    """A text with each such character replaced, for what has to be written all the same.

    What is no text as it is.
    """
    return _LONE.sub(_FILLER, value) if isinstance(value, str) else value
