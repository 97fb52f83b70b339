import csv
import io
import json
import math
import re
from html.parser import HTMLParser

import pytest
from rich.console import Console

from shared.reproduction import report
from shared.reproduction.recipe import Claim, Entry, Selector
from shared.reproduction.record import build_record
from shared.reproduction.report import charts
from shared.reproduction.report.view import duration, estimate_text, plain, tally, with_spread
from shared.reproduction.synthetic import synthetic_results

COMMAND = "python scripts/reproduce.py toy main --profile paper"
TABLES = """
paper: {slug: toy, title: "Toy & sons", venue: "Venue 2025"}
tables:
  - id: main
    third_party: true
    columns: [c0, c1, c2]
    rows: [{method: ours, cells: [70.0, 71.0, null], std: [0.5, null, null]}]
    source: a report
"""


def curves(results):
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots()
    axes.plot(*zip(*results.curve("a", "c0", 0, "loss"), strict=True), color="black")
    axes.set_title("Loss of the first run")
    return figure


def picture(results):
    return [results.artifacts("a", "c0", 0) / "sample_one.png"]


def broken(results):
    raise RuntimeError("no <curve> here")


@pytest.fixture
def made(toy, tmp_path):
    """(record, results) of a table with everything in it."""
    (toy / "projects" / "toy" / "tables.yaml").write_text(TABLES)

    def make(profile="paper", columns=3, seeds=5, **more):
        values = {
            (row, f"c{place}"): {
                seed: 70 + place + 0.3 * offset + 0.1 * ((seed * 7 + place) % 5) for seed in range(seeds)
            }
            for offset, row in enumerate("ab")
            for place in range(columns)
        }
        values["b", "c1"][2] = math.nan
        both = Selector("b", "c0"), Selector("a", "c0")
        claims = [
            Claim("up", "b is above a", "section 3", "difference", "> 0", *both, unit="points"),
            Claim("down", "b is below <a>", "section 4", "difference", "< 0", *both, unit="points"),
            Claim("open", "b diverges", "section 5", "difference", "> 0", Selector("b", "c1"), both[1]),
        ]
        given = {
            "rows": {"a": Entry("a", "A | a", published="ours"), "b": Entry("b", "B_b & 50 %")},
            "columns": {
                f"c{place}": Entry(
                    f"c{place}",
                    f"rate {place}",
                    value=10.0**-place,
                    published=f"c{place}" if place < 3 else None,
                )
                for place in range(columns)
            },
            "histories": {("a", "c0", 0): [(0, "loss", 0.7), (10, "loss", 0.3)]},
            "configs": {
                key: {"optimizer": {"lr": 0.1 ** int(key[1][1:])}, "api_key": "s3cret"} for key in values
            },
            "missing": {("a", "c0", seeds): "failed"},
            "unit": "%",
            "published": "main",
            "plots": {"x": "log", "xlabel": "learning rate"},
            "figures": tuple(f"{__name__}:{name}" for name in ("curves", "picture", "broken")),
            "title": "Accuracy over rates",
            "about": "Is it true that 1 < 2?",
        }
        results = synthetic_results(tmp_path / "s", values, profile=profile, claims=claims, **(given | more))
        art = results.artifacts("a", "c0", 0)
        art.mkdir(parents=True)
        _write_png(art / "sample_one.png")
        return build_record(results, COMMAND, 0.0, 60.0), results

    return make


def _write_png(path):
    import matplotlib.image
    import numpy as np

    matplotlib.image.imsave(path, np.zeros((4, 4, 3)))


def printed(record, results, width):
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    report.print_report(console, record, results)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("columns", [3, 8])
def test_terminal_shows_everything_within_its_width(made, width, columns):
    record, results = made(columns=columns)
    text = printed(record, results, width)
    assert max(len(line) for line in text.splitlines() if "log:" not in line) <= width
    for place in range(columns):
        assert re.search(rf"\brate {place}\b", text)
    assert text.count("A | a") == text.count("B_b & 50 %") >= 1
    words = " ".join(text.split())
    for expected in ("70.20±0.16", "70±0.5", "match", "not judged", "not available", "not finite", "in %"):
        assert expected in words
    for expected in (
        "Claims: 1 holds, 1 fails, 1 inconclusive",
        "✔ holds b is above a",
        "✘ fails b is below <a>",
    ):
        assert expected in words
    assert "failed a/c0/seed 5" in words
    assert "not finite for seed 2" in words


def test_terminal_stacks_published_below_ours(made):
    record, results = made()
    lines = printed(record, results, 100).splitlines()
    ours = next(place for place, line in enumerate(lines) if "70.20±0.16" in line)
    assert "70±0.5" in lines[ours + 1]
    assert "match" in lines[ours + 2]


def test_laptop_figures_are_not_judged(made):
    record, results = made(profile="laptop")
    text = " ".join(printed(record, results, 120).split())
    assert "for orientation, not for comparison" in text
    assert "match" not in text
    assert "70±0.5" in text


def test_nothing_ran(made, tmp_path):
    results = synthetic_results(tmp_path / "none", {("a", "x"): {}}, missing={("a", "x", 0): "missing"})
    record = build_record(results, "command", 0.0, 1.0)
    assert "No run has finished yet" in printed(record, results, 80)
    files = report.write_all(record, results, tmp_path / "out")
    assert "no run has finished yet" in files["html"].read_text().lower()


def test_all_forms_are_written_and_agree(made, tmp_path):
    record, results = made()
    files = report.write_all(record, results, tmp_path / "out")
    assert set(files) == {"json", "markdown", "csv", "latex", "html"}
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
        f.name for f in files.values()
    )
    assert json.loads(files["json"].read_text()) == record
    cells = list(csv.DictReader(files["csv"].open()))
    assert [(cell["row"], cell["column"]) for cell in cells] == results.places
    assert float(cells[0]["mean"]) == record["cells"][0]["mean"]
    assert cells[0]["verdict"] == "match"


def test_markdown_is_a_table(made, tmp_path):
    record, results = made()
    text = report.write_all(record, results, tmp_path)["markdown"].read_text()
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows[:4]} == {5}
    assert "A \\| a" in text
    assert "70.20 ± 0.16<br>*70 ± 0.5*<br>match" in text
    assert "| b is above a | 0.3 [0.3, 0.3] points" in text
    assert "- failed: a/c0/seed 5" in text


def test_latex_is_escaped_and_balanced(made, tmp_path):
    record, results = made()
    text = report.write_all(record, results, tmp_path)["latex"].read_text()
    assert text.count("{") == text.count("}")
    assert text.count("\\begin{") == text.count("\\end{") == 2
    body = text[text.index("\\midrule") : text.index("\\bottomrule")].splitlines()[1:-1]
    assert {len(re.findall(r"(?<!\\)&", line)) for line in body} == {3}
    assert "B\\_b \\& 50 \\%" in text
    assert "70.20$\\pm$0.16" in text
    assert "70 $\\pm$ 0.5 (match)" in text


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.references, self.stack, self.words = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("src", "href", "xlink:href", "srcset", "data", "action", "poster") and tag != "a":
                self.references.append(value)

    def handle_data(self, data):
        self.words.append(data)


def check_self_contained(text):
    page = Page(text)
    assert page.references
    assert all(re.match(r"data:|#", value) for value in page.references), page.references
    assert not re.search(r"url\((?!['\"]?#)|@import|<script", text)
    return " ".join(" ".join(page.words).split())


def test_html_is_self_contained_and_says_everything(made, tmp_path):
    record, results = made()
    text = report.write_all(record, results, tmp_path)["html"].read_text()
    words = check_self_contained(text)
    for expected in (
        *(
            "Toy & sons · Venue 2025",
            "Is it true that 1 < 2?",
            "b is below <a>",
            "70.20 ± 0.16",
            "not available",
        ),
        *("Loss of the first run", "third-party re-evaluation, a report", "optimizer.lr", "0.01"),
        *("RuntimeError: no <curve> here", COMMAND),
        *("1 holds, 1 fails, 1 inconclusive", "1 match", "learning rate", "A | a", "a/c0/seed 5"),
    ):
        assert expected in words, expected
    assert 'src="data:image/png;base64,' in text
    assert text.count("<svg") == 2 + 2  # the table's chart, one figure function, two claims with an interval
    assert "s3cret" not in text
    assert "***" in words


def test_pictures_take_the_colours_of_the_page(made, tmp_path):
    record, results = made()
    text = report.write_all(record, results, tmp_path)["html"].read_text()
    drawings = re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)
    for drawing in drawings:
        assert not re.search(r"#[0-9a-f]{6}\b", drawing.replace('href="#', "")), drawing[:300]
    assert any("var(--s0)" in drawing and "var(--s1)" in drawing for drawing in drawings)


def test_columns_without_a_number_or_with_other_units_are_drawn_apart(made, tmp_path):
    entries = {
        "c0": Entry("c0", "accuracy", unit="%"),
        "c1": Entry("c1", "loss", unit="nats"),
        "c2": Entry("c2"),
    }
    record, results = made(figures=())
    results.recipe.columns.update(entries)
    for cell in record["cells"]:
        cell["unit"] = entries[cell["column"]].unit or "%"
    text = report.write_all(record, results, tmp_path)["html"].read_text()
    assert text.count('<div class="plot">') == 2
    assert "loss (nats)" in text


@pytest.mark.parametrize("verdict", ["holds", "fails", "inconclusive"])
@pytest.mark.parametrize("figures", [(0.0, 0.0, 0.0, 0.0), (1.0, -1e9, 1e9, 0.0), (1e-9, 1e-9, 2e-9, 5.0)])
def test_interval_strip_stays_inside_its_frame(verdict, figures):
    estimate, low, high, threshold = figures
    drawing = charts.interval_strip(estimate, low, high, ">", threshold, verdict)
    for value in re.findall(r' (?:x|x1|x2|cx)="([-\d.]+)"', drawing):
        assert 0 <= float(value) <= 320


@pytest.mark.parametrize(
    ("value", "std", "expected"),
    [
        (84.617, 1.13, "84.6 ± 1.1"),
        (84.617, 0.0934, "84.617 ± 0.093"),
        (84.617, 12.3, "85 ± 12"),
        (84.617, 123.0, "85 ± 123"),
        (0.00012345, 0.0000021, "0.0001234 ± 0.0000021"),
        (84.617, None, "84.62"),
        (84.617, 0.0, "84.62 ± 0"),
        (84.0, 0.97, "84.00 ± 0.97"),
    ],
)
def test_the_spread_decides_the_digits(value, std, expected):
    if "0.0001234" in expected:
        assert with_spread(value, std) in (expected, "0.000123 ± 2.1e-06")
    else:
        assert with_spread(value, std) == expected


@pytest.mark.parametrize(
    ("estimate", "interval", "expected"),
    [
        (1.05, [0.41, 1.69], "1.05 [0.41, 1.69]"),
        (0.9, [-1.64, 3.5], "+0.9 [-1.6, +3.5]"),
        (-0.5, None, "-0.5"),
        (2.0, [2.0, 2.0], "2 [2, 2]"),
        (1e-9, [-1e-9, 3e-9], "+1.00e-09 [-1.00e-09, +3.00e-09]"),
    ],
)
def test_intervals_in_words(estimate, interval, expected):
    assert estimate_text(estimate, interval) == expected


def test_small_words():
    assert [plain(v) for v in (0.0, 66.24, 1234.56, 0.5, 1.0, 3e-7, 2.5e9, -0.25)] == [
        *("0", "66.24", "1235", "0.5", "1", "3e-07", "2.5e+09", "-0.25"),
    ]
    assert [duration(s) for s in (None, 0.25, 42, 200, 7500)] == [
        *("–", "0.2 s", "42 s", "3 min 20 s", "2 h 5 min"),
    ]
    assert tally([]) == "no claims"
    assert tally([{"verdict": "holds"}, {"verdict": "holds"}, {"verdict": "fails"}]) == "2 hold, 1 fails"
