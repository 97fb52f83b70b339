"""The tables of `docs/real_data.md`, written from the catalogue: `python -m shared.data.guide`."""

from __future__ import annotations

from pathlib import Path

from shared.data.entries import EmbeddedSet, RealSet, embedded_sets, real_sets
from shared.paths import ROOT

PAGE = ROOT / "docs" / "real_data.md"
BEGIN, END = "<!-- catalogue -->", "<!-- /catalogue -->"


def tables() -> str:
    """Markdown: the sets of each paper, each real set, each embedded set."""
    parts = ["## Sets by paper\n", _table(["paper", "sets below `data.root`"], _by_paper())]
    parts.append("\n## Real sets\n")
    parts += [_section(item) for item in real_sets().values()]
    parts.append("\n## Embedded sets\n")
    head = ["name", "what", "download", "source", "layout", "licence"]
    parts.append(_table(head, [_row(item) for item in embedded_sets().values()]))
    return "\n".join(parts)


def filled(text: str) -> str:
    """`text` with the block between the marks written anew."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{tables()}\n{END}{rest.split(END)[1]}"


def _by_paper() -> list[list[str]]:
    papers: dict[str, list[str]] = {}
    for item in real_sets().values():
        for paper in item.papers:
            papers.setdefault(paper, []).append(f"[{item.name}](#{item.name})")
    return [[f"`{paper}`", ", ".join(names)] for paper, names in sorted(papers.items())]


def _section(item: RealSet) -> str:
    layout = "\n".join(f"- `{'` or `'.join(pattern.split('|'))}`" for pattern in item.expect)
    get = item.get[0].upper() + item.get[1:]
    return f"### {item.name}\n\n{item.title}. Licence: {item.licence}.\n\n{get}\n\n{layout}\n"


def _row(item: EmbeddedSet) -> list[str]:
    others = "".join(f"; or {other.url}" for other in item.alternatives)
    what = f"{item.title} ({item.kind}): {item.serves}"
    return [
        item.name,
        what,
        f"{item.bytes / 1e6:.1f} MB",
        f"{item.source}{others}",
        item.layout,
        item.licence,
    ]


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(page: Path = PAGE) -> None:
    """Write the tables into the page."""
    page.write_text(filled(page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
