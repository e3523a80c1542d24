"""Looking at definition files one by one, for `show` and `validate`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datastore.errors import NO_UTF8_NAME, InvalidFile, NotFound, SwampError
from datastore.unicode_text import is_unicode
from swamp.cli.console import Console

if TYPE_CHECKING:
    from datastore.definitions import Catalog, Finding
    from datastore.layout import Layout
    from datastore.yaml_loader import Document

UNDECIDED = "a server keeps the one that it knew first: rename one of the two"
"""Said of two files with one name while no server runs: which is in force is not known."""


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

    @property
    def name(self) -> str:
        """The name that it defines, else that of the file."""
        name = None if self.document is None else self.document.value.get("name")
        return name if isinstance(name, str) else Path(self.path).stem


def look_at_all(layout: Layout, folder: Path) -> Iterator[Looked]:
    """Every definition file below the folder, by path; none is skipped for being broken."""
    from datastore.regular_file import oddity, read_bytes
    from datastore.yaml_loader import MAX_BYTES, load

    for path in sorted(folder.rglob("*.yaml")):
        if any(part.startswith(".") for part in path.relative_to(folder).parts):
            continue
        shown = layout.shown(path)
        if not is_unicode(shown):
            yield Looked(shown, None, InvalidFile(shown, NO_UTF8_NAME))
            continue
        try:
            odd = oddity(path)
            if odd is not None:
                raise InvalidFile(shown, odd)
            yield Looked(shown, load(read_bytes(path, MAX_BYTES), shown))
        except InvalidFile as problem:
            yield Looked(shown, None, problem)
        except OSError as error:
            yield Looked(shown, None, InvalidFile(shown, f"cannot be read: {error.strerror}"))


def passed_over(catalog: Catalog, folder: str, files: Iterable[Looked]) -> list[Looked]:
    """What is below the folder, no definition, and told as a problem: a linked folder, say."""
    known = {file.path for file in files}
    return [
        Looked(one.path, None, one)
        for one in catalog.problems()
        if one.path.partition("/")[0] == folder and one.path not in known
    ]


def chosen(files: Iterable[Looked], kind: str, name: str | None) -> list[Looked]:
    """All files, or those that mean `name`; NotFound, with near names, if none does."""
    from datastore.definitions.suggest import did_you_mean

    all_files = list(files)
    found = [file for file in all_files if name is None or file.means(name)]
    if name is not None and not found:
        near = did_you_mean(name, [file.name for file in all_files])
        raise NotFound(f"no {kind} '{name}'; {near or f'see `swamp {kind} list`'}")
    return found


def in_force(console: Console, files: list[Looked]) -> tuple[Looked, str | None]:
    """Which of the files to show, and a remark where another one has the same name."""
    readable = [file for file in files if file.document is not None] or files
    if len(readable) == 1:
        return readable[0], None
    paths = " and ".join(file.path for file in readable)
    refused = _refused_by_server(console)
    kept = [file for file in readable if refused is not None and file.path not in refused]
    if len(kept) == 1:
        return kept[0], f"{paths} have one name or id; the server has {kept[0].path} in force"
    return readable[0], f"{paths} have one name or id; {UNDECIDED}"


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


def add_rivals(console: Console, catalog: Catalog, results: list[dict[str, Any]]) -> None:
    """Add to each result of a valid file what only all files together show: a name taken twice."""
    problems = rivals(console, catalog)
    for result in results:
        if result["passed"] and result["path"] in problems:
            problem = problems[result["path"]]
            found = {"name": "Unique name and id", "passed": False, "path": result["path"]}
            result["validations"].append({**found, "error": problem})
            result["passed"] = False


def rivals(console: Console, catalog: Catalog) -> dict[str, str]:
    """By path what is wrong with files whose name or id another has, in the words of the server.

    Without a server that knows, both are wrong: nobody here can tell which one is in force.
    """
    from datastore.definitions.view import NameTaken

    taken = [problem for problem in catalog.problems() if isinstance(problem, NameTaken)]
    said = (_refused_by_server(console) if taken else None) or {}
    problems: dict[str, str] = {}
    for one in taken:
        known = {path: said[path] for path in (one.path, one.rival) if path in said}
        unknown = {
            one.path: f"{one.what} in {one.rival}, too: {UNDECIDED}",
            one.rival: f"{one.path} has its name or id, too: {UNDECIDED}",
        }
        problems = {**problems, **(known or unknown)}
    return problems


def problem_lines(console: Console, catalog: Catalog, folder: str) -> list[str]:
    """What is wrong with the files of one folder, a line for each, by path."""
    from datastore.definitions.view import NameTaken

    lines = {path: f"{path}: {problem}" for path, problem in rivals(console, catalog).items()}
    for one in catalog.problems():
        if not isinstance(one, NameTaken):
            lines[one.path] = str(one)
    return [lines[path] for path in sorted(lines) if path.startswith(f"{folder}/")]


def _refused_by_server(console: Console) -> dict[str, str] | None:
    """What the running server says is wrong, by path; None without one that answers."""
    client = console.local_server(console.layout())
    if client is None:
        return None
    try:
        return {one["path"]: one["problem"] for one in client.get("/api/v1/problems")}
    except SwampError:
        return None


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
