"""Looking at definition files one by one, for `show` and `validate`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datastore.errors import InvalidFile, NotFound

if TYPE_CHECKING:
    from datastore.definitions import Finding
    from datastore.layout import Layout
    from datastore.yaml_loader import Document


@dataclass(frozen=True, slots=True)
class Looked:
    """A definition file: its document, or why it has none. `path` is relative to the root."""

    path: str
    document: Document | None
    problem: InvalidFile | None = None

    def means(self, name_or_id: str) -> bool:
        """Whether the file says that it defines this; one that does not parse may."""
        if self.document is None:
            return name_or_id in (Path(self.path).stem, self.path)
        value = self.document.value
        return name_or_id in (value.get("name"), value.get("id"), self.path)


def look_at_all(layout: Layout, folder: Path) -> Iterator[Looked]:
    """Every definition file below the folder, by path; none is skipped for being broken."""
    from datastore.yaml_loader import load

    for path in sorted(folder.rglob("*.yaml")):
        if any(part.startswith(".") for part in path.relative_to(folder).parts):
            continue
        shown = layout.shown(path)
        try:
            yield Looked(shown, load(path.read_bytes(), shown))
        except InvalidFile as problem:
            yield Looked(shown, None, problem)


def chosen(files: Iterator[Looked], kind: str, name: str | None) -> list[Looked]:
    """All files, or those that mean `name`; NotFound if none does."""
    found = [file for file in files if name is None or file.means(name)]
    if name is not None and not found:
        raise NotFound(f"no {kind} '{name}'; see `swamp {kind} list`")
    return found


def validation(finding: Finding) -> dict[str, Any]:
    """A finding as JSON: `{name, passed, warning?, error?, path, line?, column?}`."""
    view: dict[str, Any] = {"name": finding.check, "passed": finding.passed, "path": finding.path}
    if finding.warning is not None:
        view["warning"] = finding.warning
    if finding.error is not None:
        view["error"] = finding.error
    if finding.position is not None:
        view |= {"line": finding.position.line, "column": finding.position.column}
    return view


def broken(problem: InvalidFile) -> dict[str, Any]:
    """The same for a file that does not parse, or is not in force."""
    view: dict[str, Any] = {
        "name": "Schema validation",
        "passed": False,
        "path": problem.path,
        "error": problem.problem,
    }
    if problem.position is not None:
        view |= {"line": problem.position.line, "column": problem.position.column}
    return view


def add_rivals(layout: Layout, results: list[dict[str, Any]]) -> None:
    """Add to each result of a valid file what only all files together show: a name taken twice."""
    from datastore.definitions import Catalog

    catalog = Catalog(layout.root)
    catalog.scan()
    problems = {problem.path: problem for problem in catalog.problems()}
    for result in results:
        if result["passed"] and result["path"] in problems:
            rival = broken(problems[result["path"]])
            result["validations"].append({**rival, "name": "Unique name and id"})
            result["passed"] = False


def finding_lines(validations: list[dict[str, Any]]) -> list[str]:
    """Errors and warnings as an editor's `path:line:column: …`, nothing for what is well."""
    lines = []
    for one in validations:
        where = ":".join(str(one[key]) for key in ("path", "line", "column") if key in one)
        if "error" in one:
            lines.append(f"{where}: {one['error']}")
        if "warning" in one:
            lines.append(f"{where}: warning: {one['warning']}")
    return lines
