"""Claims and pictures on made-up figures."""

import pytest

from projects.fedwsq import claims, figures
from shared.reproduction.recipe import Entry
from shared.reproduction.synthetic import synthetic_results


def test_a_cell_as_a_claim(tmp_path):
    values = {("a", "x"): {0: 7.5, 3: 8.0}}
    assert claims.metric_of(synthetic_results(tmp_path, values), "a", "x") == {0: 7.5, 3: 8.0}


def lines(figure):
    (axes,) = figure.axes
    return {line.get_label(): line for line in axes.get_lines() if not line.get_label().startswith("_")}


def test_curves_and_scales(tmp_path):
    rows = {name: Entry(id=name, label=name) for name in ("danuq", "none")}
    configs = {(name, "x"): {"quantizer": {"name": name}} for name in rows}
    histories = {
        (name, "x", seed): [
            line
            for step in range(1, 9)
            for line in ((step, "last/accuracy", 10 * step + seed), (step, "scales/ratio", 0.1 * step))
        ]
        for name in rows
        for seed in (0, 2)
    }
    values = {(name, "x"): {0: 1.0, 2: 2.0} for name in rows}
    table = synthetic_results(tmp_path, values, rows=rows, configs=configs, histories=histories)
    drawn = lines(figures.curves(table))
    assert set(drawn) == {"danuq", "none"}
    assert drawn["none"].get_xdata().tolist() == [5, 6, 7, 8]
    assert drawn["none"].get_ydata()[0] == pytest.approx(31)  # rounds 1 to 5, seeds 0 and 2
    assert set(lines(figures.scales(table))) == {"danuq"}


def test_errors(tmp_path):
    values = {(row, column): {0: 0.1, 1: 0.3} for row in ("a", "b", "kurtosis") for column in ("x", "y")}
    (axes,) = figures.errors(synthetic_results(tmp_path, values)).axes
    widths = [bar.get_width() for bar in axes.patches]
    assert widths == pytest.approx([0.2] * 4)
    assert [text.get_text() for text in axes.get_yticklabels()] == ["a", "b"]


def test_nothing_has_run(tmp_path):
    table = synthetic_results(tmp_path, {("a", "x"): {}}, missing={("a", "x", 0): "failed"}, configs={})
    assert not lines(figures.curves(table)) and not figures.errors(table).axes[0].patches
