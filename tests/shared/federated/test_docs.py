"""The walk-through of docs/federated.md runs and learns; its other blocks are Python."""

import ast
import re
import textwrap
from pathlib import Path

DOCS = Path(__file__).resolve().parents[3] / "docs" / "federated.md"
BLOCK = re.compile(r"(<!-- runs as a test -->\n)?```python\n(.*?)```", re.DOTALL)


def blocks():
    return [(bool(marked), code) for marked, code in BLOCK.findall(DOCS.read_text())]


def test_own_algorithm_in_fifty_lines_runs_and_learns():
    (code,) = [code for marked, code in blocks() if marked]
    own = code[code.index("class PrototypeClient") : code.index("torch.manual_seed(0)")]
    assert len([line for line in own.splitlines() if line.strip()]) <= 50
    names = {"__name__": "walk_through"}
    exec(compile(code, "docs/federated.md", "exec"), names)
    module = names["module"]
    assert names["trainer"].callback_metrics["val/acc"] > 0.6  # chance: a third
    assert set(module.prototypes) == {"0", "1", "2"}
    weights = sum(p.numel() for p in module.model.parameters())
    assert module.ledger.total(direction="up", name="model") == 15 * 4 * (weights + 4 * 8)


def test_every_paper_has_a_round_of_at_most_fifteen_lines():
    text = DOCS.read_text()
    papers = [
        "GPA",
        "FCIT",
        "FedXDS",
        "FedVLA",
        "FedPall",
        "FedMeNF",
        "FedMVP",
        "FedDifRC",
        "FedAGC",
        "FedIA",
        "FedRE",
    ]
    for paper in papers:
        code = re.search(rf"\*\*{paper}\*\*.*?```python\n(.*?)```", text, re.DOTALL).group(1)
        for function in ast.parse(textwrap.dedent(code)).body:
            assert function.name == "round" and function.end_lineno - function.lineno < 16, paper


def test_all_blocks_parse():
    for _, code in blocks():
        ast.parse(textwrap.dedent(code))
