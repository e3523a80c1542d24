"""Secrets made `***` in streams and texts, also where a value is split over two pieces.

A value is known in the forms in which it usually leaks: as it is, each longer line of it, escaped
for JSON or for a URL, and in base64 at each of the three alignments. Values shorter than four
characters are left alone: hiding them would hide everything.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from urllib.parse import quote, quote_plus

from datastore.kinds import Outcome

SHORTEST = 4
SHORTEST_LINE = 8
MASK = b"***"


class Redactor:
    """Knows a set of secret values. Without any it passes everything through."""

    def __init__(self, values: Iterable[str]) -> None:
        self._values = [value for value in values if len(value) >= SHORTEST]

    # Most steps are short and say nothing: what they do not need is not made for them.
    @cached_property
    def _forms(self) -> list[bytes]:
        forms = {form for value in self._values for form in _forms(value)}
        return sorted(forms, key=lambda form: (-len(form), form))

    @cached_property
    def _pattern(self) -> re.Pattern[bytes]:
        return re.compile(b"|".join(map(re.escape, self._forms)))

    def __bool__(self) -> bool:
        return bool(self._values)

    @property
    def longest(self) -> int:
        """The length of the longest form, bytes."""
        return max(map(len, self._forms), default=0)

    def knows(self, data: bytes) -> bool:
        """Whether any form of any value stands in the bytes."""
        return any(form in data for form in self._forms)

    def text(self, text: str) -> str:
        """The text with every form of every value masked."""
        if not text or not self._values:
            return text
        data = text.encode("utf-8", "surrogateescape")
        return self.whole(data).decode("utf-8", "surrogateescape")

    def whole(self, data: bytes) -> bytes:
        """The bytes with every form of every value masked."""
        # Looking for each form is many times faster than the pattern, and mostly there is none.
        return self._pattern.sub(MASK, data) if self.knows(data) else data

    def split(self, data: bytes) -> tuple[bytes, bytes]:
        """What of a stream can be passed on now, masked, and the rest that may begin a value."""
        masked: list[bytes] = []
        end = 0
        for match in self._pattern.finditer(data) if self.knows(data) else ():
            masked += (data[end : match.start()], MASK)
            end = match.end()
        rest = data[end:]
        keep = self._begins_a_value(rest)
        masked.append(rest[: len(rest) - keep])
        return b"".join(masked), rest[len(rest) - keep :]

    def _begins_a_value(self, data: bytes) -> int:
        """The length of the longest end of `data` with which some form begins."""
        longest = 0
        for form in self._forms:
            tail = data[-(len(form) - 1) :]
            at = tail.find(form[:1])
            while at >= 0 and not form.startswith(tail[at:]):
                at = tail.find(form[:1], at + 1)
            if at >= 0:
                longest = max(longest, len(tail) - at)
        return longest


class RedactedStream:
    """One stream under a redactor; `flush` at its end."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        """What can be passed on after this piece."""
        if not self._redactor:
            return data
        passed, self._rest = self._redactor.split(self._rest + data)
        return passed

    def flush(self) -> bytes:
        """What was held back and turned out to be no value."""
        rest, self._rest = self._rest, b""
        return rest


class SecretScan:
    """Looks for secrets in one stream, each known by how it is to be named to people."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._redactors = {shown: Redactor([value]) for shown, value in values.items()}
        # A value that is split over two pieces is whole in the end of one with the next.
        self._overlap = max((one.longest for one in self._redactors.values()), default=0) - 1
        self._end = b""

    def feed(self, data: bytes) -> str | None:
        """Which secret the stream is known to hold with this piece; None without any."""
        seen = self._end + data
        self._end = seen[-self._overlap :] if self._overlap > 0 else b""
        return next((shown for shown, one in self._redactors.items() if one.knows(seen)), None)


def masked_outcome(outcome: Outcome, redactor: Redactor) -> Outcome:
    """The outcome with its texts masked."""
    if not redactor:
        return outcome
    return outcome.model_copy(
        update={
            "stdout": redactor.text(outcome.stdout),
            "stderr": redactor.text(outcome.stderr),
            "error": None if outcome.error is None else redactor.text(outcome.error),
        }
    )


def masked_piece(text: str | None, data: str | None, redactor: Redactor) -> dict[str, str]:
    """A piece of output as events hold it: `text`, or `data` in base64; masked."""
    if text is not None:
        return {"text": redactor.text(text)}
    given = data or ""
    if not redactor:
        return {"data": given}
    return {"data": base64.b64encode(redactor.whole(base64.b64decode(given))).decode()}


def _forms(value: str) -> set[bytes]:
    raw = value.encode("utf-8", "surrogateescape")
    forms = {
        raw,
        json.dumps(value)[1:-1].encode(),
        json.dumps(value, ensure_ascii=False)[1:-1].encode("utf-8", "surrogateescape"),
    }
    forms |= {quote(raw, safe="").encode(), quote_plus(raw).encode()}
    forms |= {line for line in raw.splitlines() if len(line) >= SHORTEST_LINE}
    forms |= _base64_forms(raw)
    return {form for form in forms if len(form) >= SHORTEST}


def _base64_forms(raw: bytes) -> set[bytes]:
    """The part of each alignment that does not depend on what stands before or after the value."""
    forms = set()
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + raw).rstrip(b"=")
        first = (0, 2, 3)[shift]
        last = len(encoded) - (1 if (shift + len(raw)) % 3 else 0)
        part = encoded[first:last]
        if len(part) >= SHORTEST_LINE:
            forms |= {part, part.replace(b"+", b"-").replace(b"/", b"_")}
    return forms
