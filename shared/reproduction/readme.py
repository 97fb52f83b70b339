"""The generated blocks of README files: every figure they quote comes from `docs/results`."""

from __future__ import annotations

import re
from pathlib import Path

from shared import paths
from shared.errors import UserError
from shared.reproduction.published import read_tables
from shared.reproduction.recipe import load_recipe, recipes
from shared.reproduction.record import committed_path
from shared.reproduction.report.text import markdown_claims, markdown_table
from shared.reproduction.report.view import View, duration, tally
from shared.reproduction.status import command, view_of
from shared.reproduction.store import write_text

RESULTS = re.compile(r"(<!-- results: (\S+?)/(\S+?) -->\n)(.*?)(<!-- /results -->)", re.DOTALL)
PAPERS = re.compile(r"(<!-- papers -->\n)(.*?)(<!-- /papers -->)", re.DOTALL)
MARKS = re.compile(r"<!-- (/?)(results|papers)\b[^>]*-->")


def check_readmes() -> list[str]:
    """README files whose generated blocks disagree with the records, each with what to do; empty if none."""
    return [
        f"{path.relative_to(paths.ROOT)} disagrees with docs/results. "
        "Run: python scripts/status.py --write-readmes"
        for path, now, wanted in _all()
        if now != wanted
    ]


def write_readmes() -> list[Path]:
    """Fill the blocks of every README; return the files that changed."""
    changed = [(path, wanted) for path, now, wanted in _all() if now != wanted]
    for path, wanted in changed:
        write_text(path, wanted)
    return [path for path, _ in changed]


def results_block(paper: str, profile: str, table: str) -> str:
    """What stands between `<!-- results: profile/table -->` and its end, newline included."""
    recipe = load_recipe(paper, table)
    recipe.at(profile)  # a mistyped profile must not look like one that was not measured
    if not committed_path(paper, table, profile).is_file():
        return f"\nNot measured yet: `{command(paper, table, profile)}`\n\n"
    view = view_of(recipe, profile)
    parts = [markdown_table(view)]
    if view.record["claims"]:
        parts.append(markdown_claims(view))
    if view.unfinished:
        parts.append(f"{len(view.unfinished)} of {len(view.record['runs'])} runs have no result.")
    return "\n" + "\n\n".join([*parts, _measured_line(view)]) + "\n\n"


def papers_block() -> str:
    """The table of papers in the top README: what each claims, what we found, how to re-run it."""
    lines = [
        "| paper | venue | what it claims | found on a laptop | re-run |",
        "| --- | --- | --- | --- | --- |",
    ]
    for paper in paths.papers():
        about = read_tables(paper)["paper"]
        name = f"[{about.get('title') or paper}](projects/{paper}/README.md)"
        cells = [name, about.get("venue") or "", _claim(paper, about), _found(paper)]
        escaped = [" ".join(str(cell).split()).replace("|", "\\|") for cell in cells]
        lines.append(f"| {' | '.join(escaped)} | `bash scripts/reproduce.sh {paper}` |")
    return "\n" + "\n".join(lines) + "\n\n"


def _all() -> list[tuple[Path, str, str]]:
    """(file, its content, its content with fresh blocks) of every README."""
    found = []
    top = paths.ROOT / "README.md"
    for path in [top, *(paths.PROJECTS / paper / "README.md" for paper in paths.papers())]:
        if path.is_file():
            now = path.read_text(encoding="utf-8")
            found.append((path, now, _filled(path, now)))
    return found


def _filled(path: Path, content: str) -> str:
    _check_marks(path, content)
    paper = path.parent.name
    content = RESULTS.sub(
        lambda found: found[1] + results_block(paper, found[2], found[3]) + found[5], content
    )
    return PAPERS.sub(lambda found: found[1] + papers_block() + found[3], content)


def _check_marks(path: Path, content: str) -> None:
    """Marks come in pairs and name a table; else a figure could stand there that nothing checks."""
    marks = [(found[1], found[2]) for found in MARKS.finditer(content)]
    paired = all(
        first == ("", second[1]) and second[0] == "/"
        for first, second in zip(marks[::2], marks[1::2], strict=False)
    )
    blocks = len(RESULTS.findall(content)) + len(PAPERS.findall(content))
    if len(marks) % 2 or not paired or blocks != len(marks) // 2:
        raise UserError(
            f"{path.relative_to(paths.ROOT)}: expected blocks `<!-- results: profile/table -->` ... "
            "`<!-- /results -->` or `<!-- papers -->` ... `<!-- /papers -->`, each mark on its own line; "
            f"found {len(marks)} marks that form {blocks} blocks."
        )


def _claim(paper: str, about: dict[str, str]) -> str:
    """`claim` of tables.yaml, else the first sentence about the default table."""
    if about.get("claim"):
        return about["claim"]
    default = next((recipe for recipe in _recipes(paper) if recipe.default), None)
    return re.split(r"(?<=[.?!])\s", (default.about or default.title).strip())[0] if default else ""


def _found(paper: str) -> str:
    """Verdicts of the claims of all tables measured at the laptop profile."""
    claims = []
    measured = False
    for recipe in _recipes(paper):
        if "laptop" in recipe.profiles and committed_path(paper, recipe.table, "laptop").is_file():
            measured = True
            claims += view_of(recipe, "laptop").record["claims"]
    return tally(claims) if measured else "not measured yet"


def _recipes(paper: str) -> list:
    return recipes(paper) if any((paths.CONFIGS / paper).glob("*.yaml")) else []


def _measured_line(view: View) -> str:
    environment = view.record["environment"]
    torch = environment["versions"].get("torch")
    machine = f"{environment['cpu']}, {environment['cores']} cores" + (
        f", {environment['device']}" if environment["device"] != "cpu" else ""
    )
    return (
        f"Measured {environment['finished'][:10]} on {machine}"
        + (f", torch {torch}" if torch else "")
        + f"; {len(view.record['runs'])} runs, {duration(environment['run_seconds'])} of computing in all. "
        f"Again: `{environment['command']}`"
    )
