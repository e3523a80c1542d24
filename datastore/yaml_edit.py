"""Changing one field of a person's file, and not one character more than that takes.

Comments, order, quoting, line ends and blank lines stay as they are. Whatever was written is read
again before it is handed out: exactly the one path may have changed, or the edit is refused.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from datastore.errors import InvalidFile
from datastore.yaml_emitter import emit, emit_scalar
from datastore.yaml_loader import Document, load

Scalar = str | int | float | bool | None

_BLOCK_HEADER = re.compile(r"[|>][-+0-9]*([ \t]+#[^\r\n]*)?")
_BOM = "\ufeff"


def set_field(text: str, keys: tuple[str, ...], value: Scalar, path: str) -> str:
    """`text` with the scalar at `keys` set to `value`; missing keys and parents are added.

    The text itself when the value is there already. InvalidFile, naming `path`, when the text does
    not parse or the change cannot be made without touching anything else; ValueError for a value
    that YAML cannot hold.
    """
    bom, text = (_BOM, text[1:]) if text.startswith(_BOM) else ("", text)
    document = None if _holds_nothing(text) else load(text.encode(), path)
    before = {} if document is None else document.value
    wanted = _with(before, keys, value)
    if wanted is not None and _exact(wanted) == _exact(before):
        return bom + text
    edit = _Edit(text, document, path)
    changed = edit.apply(keys, emit_scalar(value))
    if wanted is None or _reads_as(changed) != _exact(wanted):
        raise edit.refusal(keys, "cannot be changed without touching more: edit the file by hand")
    return bom + changed


def clear_field(text: str, keys: tuple[str, ...], path: str) -> str:
    """As `set_field` with null, and the text itself where there is no value."""
    bare = text.removeprefix(_BOM)
    value: Any = None if _holds_nothing(bare) else load(bare.encode(), path).value
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return text if value is None else set_field(text, keys, None, path)


def new_file(document: Mapping[str, Any], comment: str) -> str:
    """A file for a person to go on with: `comment` as a commented header, then the document."""
    header = "".join(f"# {line}".rstrip() + "\n" for line in comment.splitlines())
    return f"{header}\n{emit(document)}" if header else emit(document)


@dataclass(frozen=True, slots=True)
class _Edit:
    """One change of one text, of which `document` is the parsed form (None: no content)."""

    text: str
    document: Document | None
    path: str

    def apply(self, keys: tuple[str, ...], scalar: str) -> str:
        if self.document is None:
            return self._insert_lines(len(self.text), 0, keys, scalar)
        node: yaml.Node = self.document.root
        column, flow = 0, False
        for depth, key in enumerate(keys):
            if not isinstance(node, yaml.MappingNode):
                return self._fill(node, keys, depth, scalar, None if flow else column)
            found = next(((k, v) for k, v in node.value if k.value == key), None)
            if found is None:
                return self._add(node, keys[depth:], scalar)
            flow = bool(node.flow_style)
            column, node = found[0].start_mark.column, found[1]
        if not isinstance(node, yaml.ScalarNode):
            raise self.refusal(keys, "is a mapping or a list, expected a single value")
        return self._replace(node, scalar)

    def refusal(self, keys: tuple[str, ...], problem: str) -> InvalidFile:
        position = self.document.position(*keys) if self.document else None
        return InvalidFile(self.path, f"'{'.'.join(keys)}' {problem}", position)

    def _replace(self, node: yaml.ScalarNode, scalar: str) -> str:
        start, end = node.start_mark.index, node.end_mark.index
        if start == end:
            rest = self.text[end : self._line_end(end)]
            # Blanks behind a bare "key:" go, those before a comment stay.
            return self._splice(start, end if rest.strip() else end + len(rest), f" {scalar}")
        if node.style not in ("|", ">"):
            return self._splice(start, end, scalar)
        header = _BLOCK_HEADER.match(self.text, start)
        comment = (header[1] or "") if header else ""
        return self._splice(start, _content_end(self.text, node), scalar + comment)

    def _fill(
        self, node: yaml.Node, keys: tuple[str, ...], depth: int, scalar: str, column: int | None
    ) -> str:
        """Make a mapping of a value that is null; `column` of its key, None inside braces."""
        empty = isinstance(node, yaml.ScalarNode) and node.style == ""
        if not empty or self._value(keys[:depth]) is not None:
            raise self.refusal(keys[:depth], "is not a mapping, expected one")
        start, end = node.start_mark.index, node.end_mark.index
        if start == end and column is not None:
            step = _indent_step(self.document)
            after = _block_end(self.text, end, column + 1)
            return self._insert_lines(after, column + step, keys[depth:], scalar)
        braces = _in_braces(keys[depth:], scalar)
        return self._splice(start, end, f" {braces}" if start == end else braces)

    def _add(self, mapping: yaml.MappingNode, keys: tuple[str, ...], scalar: str) -> str:
        """Add a key at the end of a mapping."""
        if not mapping.flow_style:
            column = mapping.start_mark.column
            after = _block_end(self.text, _content_end(self.text, mapping), column)
            return self._insert_lines(after, column, keys, scalar)
        entry = _in_braces(keys, scalar)[1:-1]
        if not mapping.value:
            inside = mapping.start_mark.index + 1
            return self._splice(inside, inside, entry)
        end = max(_content_end(self.text, child) for child in mapping.value[-1])
        comma = re.compile(r"\s*,").match(self.text, end)
        if comma is not None:
            return self._splice(comma.end(), comma.end(), f" {entry}")
        return self._splice(end, end, f", {entry}")

    def _insert_lines(self, index: int, column: int, keys: tuple[str, ...], scalar: str) -> str:
        """Add the keys, one below the other, as lines at `index`, the start or end of a line."""
        newline = "\r\n" if "\r\n" in self.text else "\n"
        step = _indent_step(self.document)
        lines = [
            f"{' ' * (column + step * level)}{emit_scalar(key)}:" for level, key in enumerate(keys)
        ]
        added = newline.join(lines) + f" {scalar}"
        if index and self.text[index - 1] != "\n":
            return self._splice(index, index, newline + added)
        return self._splice(index, index, added + newline)

    def _value(self, keys: tuple[str, ...]) -> Any:
        value: Any = self.document.value if self.document else None
        for key in keys:
            value = value[key]
        return value

    def _line_end(self, index: int) -> int:
        end = self.text.find("\n", index)
        if end < 0:
            return len(self.text)
        return end - 1 if end > index and self.text[end - 1] == "\r" else end

    def _splice(self, start: int, end: int, replacement: str) -> str:
        return self.text[:start] + replacement + self.text[end:]


def _holds_nothing(text: str) -> bool:
    """Whether there are only comments, blank lines and the mark of a document's start."""
    lines = (line.partition("#")[0].strip() for line in text.split("\n"))
    return all(line in ("", "---") for line in lines)


def _with(value: Any, keys: tuple[str, ...], new: Scalar) -> dict[str, Any] | None:
    """The value with one path set; None when something on the way is no mapping."""
    result: dict[str, Any] = copy.deepcopy(value)
    inner = result
    for key in keys[:-1]:
        if inner.get(key) is None:
            inner[key] = {}
        inner = inner[key]
        if not isinstance(inner, dict):
            return None
    inner[keys[-1]] = new
    return result


def _exact(value: Any) -> str:
    """Order, types and all: `True`, `1` and `1.0` are equal to Python."""
    return json.dumps(value)


def _reads_as(text: str) -> str | None:
    try:
        return _exact(load(text.encode(), "").value)
    except InvalidFile:
        return None


def _in_braces(keys: tuple[str, ...], scalar: str) -> str:
    opened = "".join(f"{{{emit_scalar(key)}: " for key in keys)
    return opened + scalar + "}" * len(keys)


def _content_end(text: str, node: yaml.Node) -> int:
    """Where the last character that belongs to the node ends.

    The parser's own end of a block is the start of whatever comes next, comments included.
    """
    if isinstance(node, (yaml.MappingNode, yaml.SequenceNode)) and not node.flow_style:
        last = node.value[-1]
        children = last if isinstance(node, yaml.MappingNode) else (last,)
        return max(_content_end(text, child) for child in children)
    end: int = node.end_mark.index
    if isinstance(node, yaml.ScalarNode) and node.style in ("|", ">"):
        content = text[node.start_mark.index : end]
        header = _BLOCK_HEADER.match(content)
        # With "+" the blank lines behind the text are part of it.
        if header is None or "+" not in header[0].split("#")[0]:
            return node.start_mark.index + len(content.rstrip())
    return end


def _block_end(text: str, index: int, column: int) -> int:
    """The start of the line behind a block: comments indented to `column` or deeper are its own."""
    at_start = text[index - 1 : index] == "\n"
    end = position = index if at_start else _next_line(text, index)
    while position < len(text):
        following = _next_line(text, position)
        line = text[position:following]
        content = line.lstrip(" ")
        if content.strip() and not (content[0] == "#" and len(line) - len(content) >= column):
            break
        position = following
        if content.strip():
            end = position
    return end


def _next_line(text: str, index: int) -> int:
    newline = text.find("\n", index)
    return len(text) if newline < 0 else newline + 1


def _indent_step(document: Document | None) -> int:
    """By how much the file itself indents; 2 where it does not say."""
    steps = () if document is None else _steps(document.root)
    return next(iter(steps), 2)


def _steps(node: yaml.MappingNode) -> Iterator[int]:
    for key, value in node.value:
        if isinstance(value, yaml.MappingNode) and not value.flow_style:
            yield value.start_mark.column - key.start_mark.column
