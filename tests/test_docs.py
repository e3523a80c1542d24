"""The pages say what the code says: commands, states, fields, routes, events, links, examples."""

import ast
import re
import runpy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from datastore.desired import FIELDS, DesiredTree
from datastore.kinds import KINDS, Call, Counts, Outcome, Placement
from datastore.layout import Layout, create_folders
from datastore.record import Kind, Model
from swamp.protocol import DATA_PATH, DEATH_PATH, PROTOCOL_VERSION

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md"),
                 *(ROOT / "manifests").rglob("*.md"))
)  # fmt: skip
EXAMPLES = sorted((ROOT / "manifests" / "desired").glob("*.yaml"))


@cache
def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def section(name: str, title: str) -> str:
    """The text of a page below a heading of the second level."""
    parts = re.split(r"^## ", page(name), flags=re.MULTILINE)
    found = [part for part in parts if part.partition("\n")[0] == title]
    assert len(found) == 1, f"docs/{name} has {len(found)} headings '{title}'"
    return found[0]


# -- commands ------------------------------------------------------------------------------------


@cache
def written() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "write_commands.py"))


def test_the_page_of_commands_is_up_to_date() -> None:
    assert page("commands.md") == written()["page"](), "run `make docs`"


def test_every_command_and_option_has_a_help_text() -> None:
    import typer

    from swamp.cli.app import app

    root = typer.main.get_command(app)
    commands = list(written()["_commands"](root, ("swamp",)))
    assert len(commands) >= 20
    silent = [
        f"{' '.join(path)} {parameter.name}"
        for path, command in commands
        for parameter in command.params
        if not (parameter.help or "").strip()
    ]
    assert silent == []
    for path, command in commands:
        assert f"\n## {' '.join(path)}\n" in page("commands.md")
        for parameter in command.params:
            for name in parameter.opts:
                assert name == parameter.name or f"`{name}`" in page("commands.md")


def test_commands_that_the_pages_show_exist() -> None:
    """Words after `swamp` that are no command are a page that was left behind."""
    import typer

    from swamp.cli.app import app

    root = typer.main.get_command(app)
    known = {path[1:] for path, _ in written()["_commands"](root, ("swamp",))}
    wrong = []
    for name in PAGES:
        for shown in re.findall(r"(?:^|`|\(|\| )swamp ((?:[a-z]+ ?)+)", text(name), re.MULTILINE):
            words = tuple(shown.split())
            if not any(words[: len(path)] == path[: len(words)] for path in known):
                wrong.append(f"{name}: swamp {shown}")
    assert wrong == []


# -- records -------------------------------------------------------------------------------------


def graph(folder: str) -> set[tuple[str | None, str]]:
    """The arrows of the kind's graph."""
    blocks = re.findall(r"```mermaid\n(.*?)```", page("states.md"), re.DOTALL)
    own = [block for block in blocks if f"%% kind: {folder}\n" in block]
    assert len(own) == 1, f"docs/states.md has {len(own)} graphs of {folder}"
    arrows = re.findall(r"^\s*(\S+) --> (\S+)$", own[0], re.MULTILINE)
    return {(None if start == "[*]" else start, end) for start, end in arrows}


@pytest.mark.parametrize("kind", KINDS.values(), ids=str)
def test_the_graph_of_a_kind_shows_its_moves(kind: Kind[Any, Any]) -> None:
    moves = {(start, end) for start, ends in kind.moves.items() for end in ends}
    assert graph(kind.folder) == moves


@pytest.mark.parametrize("kind", KINDS.values(), ids=str)
def test_every_state_is_explained(kind: Kind[Any, Any]) -> None:
    told = section("states.md", kind.title)
    states = {state for state in kind.moves if state is not None}
    assert [state for state in sorted(states) if f"**{state}**" not in told] == []


@pytest.mark.parametrize("kind", KINDS.values(), ids=str)
def test_every_field_of_a_kind_is_documented(kind: Kind[Any, Any]) -> None:
    told = section("records.md", kind.folder)
    assert [name for name in fields(kind.spec) if f"`{name}`" not in told] == []
    assert [name for name in fields(kind.status) if f"`{name}`" not in told] == []
    states = {state for state in kind.moves if state is not None}
    assert [state for state in sorted(states) if f"`{state}`" not in told] == []


@pytest.mark.parametrize("model", [Call, Placement, Outcome, Counts])
def test_every_field_of_a_part_is_documented(model: type[Model]) -> None:
    assert [name for name in fields(model) if f"`{name}`" not in page("records.md")] == []


def fields(model: type[Model]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


@pytest.mark.parametrize("kind", KINDS.values(), ids=str)
def test_the_example_of_a_kind_is_a_record(kind: Kind[Any, Any]) -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", section("records.md", kind.folder), re.DOTALL)
    assert len(blocks) == 1
    document = yaml.safe_load(blocks[0])
    assert kind.load(document).document() == document
    assert document["kind"] == kind.title
    assert list(document) == ["apiVersion", "kind", "metadata", "spec", "status"]


# -- what people ask for -------------------------------------------------------------------------


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_of_a_desired_file_is_in_force(example: Path, tmp_path: Path) -> None:
    """It sets every field of its kind, under the name that it says."""
    kind = KINDS[example.stem]
    layout = Layout(tmp_path)
    create_folders(layout)
    name = yaml.safe_load(example.read_text())["metadata"]["name"]
    (layout.desired(kind.folder) / f"{name}.yaml").write_bytes(example.read_bytes())
    tree = DesiredTree(layout)
    assert len(tree.scan()) == 1
    assert tree.problems() == []
    file = tree.current(kind, name)
    assert file is not None
    assert set(file.spec) == set(FIELDS[kind.folder].model_fields)
    assert "# " in example.read_text().partition("spec:")[0]


def test_every_kind_that_takes_wishes_has_an_example_in_the_table() -> None:
    readme = (ROOT / "manifests" / "README.md").read_text()
    asked = {folder for folder, model in FIELDS.items() if model.model_fields}
    assert {path.stem for path in EXAMPLES} == asked
    assert [folder for folder in sorted(asked) if f"](desired/{folder}.yaml)" not in readme] == []


@pytest.mark.parametrize("folder", sorted(FIELDS))
def test_what_may_be_asked_is_documented(folder: str) -> None:
    rows = section("records.md", "desired").splitlines()
    row = next((row for row in rows if row.startswith(f"| `{folder}` ")), "")
    assert re.findall(r"`(\w+)`", row.rpartition("|")[0].split("|")[2] if row else "") == fields(
        FIELDS[folder]
    )


# -- API -----------------------------------------------------------------------------------------


def source(folder: str) -> str:
    """All code of a package, one module after the other."""
    modules = sorted((ROOT / folder).rglob("*.py"))
    return "\n".join(module.read_text(encoding="utf-8") for module in modules)


def test_every_route_is_documented() -> None:
    declared = re.findall(r'web\.(get|post)\("([^"]+)"', source("swamp/serve"))
    shown = re.findall(r"`(GET|POST) ([^`?]+)", page("api.md"))
    assert len(declared) >= 12
    by_name = {("GET", "/"), ("POST", DEATH_PATH), ("GET", f"{DATA_PATH}/{{name}}")}
    assert {(m.upper(), path) for m, path in declared} | by_name == set(shown)


def test_every_error_code_is_documented() -> None:
    text = source("swamp/serve")
    codes = set(re.findall(r'\b[45]\d\d,\s+"(\w+)"', text)) | {"http"}
    rows = re.findall(r"^\| `(\w+)` \| (?:\d+|any) \|", page("api.md"), re.MULTILINE)
    assert set(rows) == codes


def test_every_event_is_documented() -> None:
    kinds = {"output"}
    for path in sorted((ROOT / "controllers").rglob("*.py")):
        kinds |= told_kinds(ast.parse(path.read_text(encoding="utf-8")))
    rows = re.findall(r"^\| `(\w+)` \|", section("api.md", "Events of a run"), re.MULTILINE)
    assert set(rows) == kinds


def told_kinds(tree: ast.Module) -> set[str]:
    """Texts that name an event; those of failed steps are made from the state."""
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    named = {t for t in texts if isinstance(t, str) and re.fullmatch(r"(run|job|step)_[a-z]+", t)}
    made = {"step_failed"} if "step_" in texts else set()
    return named | made


def test_the_protocol_has_a_version() -> None:
    assert PROTOCOL_VERSION >= 1
    assert "PROTOCOL_VERSION" in page("checklists.md")


# -- pages ---------------------------------------------------------------------------------------


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    wrong = []
    for target in re.findall(r"\]\(([^)]+)\)", text(name)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / name).parent / path if path else ROOT / name
        if not file.exists():
            wrong.append(target)
        elif anchor:
            titles = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            if anchor not in {re.sub(r"[^\w -]", "", t).lower().replace(" ", "-") for t in titles}:
                wrong.append(target)
    assert wrong == []


def test_every_page_is_linked_from_the_readme() -> None:
    readme = text("README.md")
    pages = [path.name for path in DOCS.glob("*.md")]
    assert [name for name in sorted(pages) if f"](docs/{name})" not in readme] == []


def test_the_walk_through_fits_on_one_page() -> None:
    assert len(page("architecture.md").splitlines()) <= 150


def test_every_module_of_a_controller_is_in_the_walk_through() -> None:
    names = ("run", "scheduler", "lease", "enrollment", "retention", "boot sweep")
    assert [name for name in names if name not in page("architecture.md")] == []


def test_make_targets_in_the_pages_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", text("Makefile"), re.MULTILINE))
    shown = {
        target
        for name in PAGES
        for target in re.findall(r"(?:`|^    )make (?:\w+=\S+ )?([a-z]+)", text(name), re.MULTILINE)
    }
    assert shown <= targets
    assert {"demo", "test", "check", "sim"} <= shown


def test_decisions_are_numbered_without_gaps() -> None:
    names = sorted(path.name for path in (DOCS / "decisions").glob("*.md"))
    assert [name[:3] for name in names] == [f"{n:03d}" for n in range(1, len(names) + 1)]
