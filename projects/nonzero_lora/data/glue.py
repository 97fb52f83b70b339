"""Five GLUE tasks as text to text, in T5's own prompts (Raffel et al. 2020, appendix D).

The labels of the test files are not public, so the dev sets are the tests.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from projects.nonzero_lora.data.examples import Example, Question, TextTask, require
from shared.errors import UserError, suggest

FOLDER = "glue"
LAYOUT = f"{FOLDER}/{{MNLI,SST-2,CoLA,QNLI,MRPC}}/train.tsv and dev.tsv (MNLI: dev_matched.tsv)"
SOURCE = "https://gluebenchmark.com/tasks (MRPC by the download script named there)"


@dataclass(frozen=True)
class GlueTask:
    """Columns of a task's files, the prompt made of them and the words that stand for its labels."""

    prompt: str  # with {column} for a column
    columns: dict[str, str]  # name in the prompt -> column of the file
    label: str  # column of the label
    words: dict[str, str]  # label in the file -> word to generate
    header: tuple[str, ...] | None = None  # for files without a header line
    dev: str = "dev.tsv"


TASKS = {
    "MNLI": GlueTask(
        "mnli hypothesis: {hypothesis} premise: {premise}",
        {"premise": "sentence1", "hypothesis": "sentence2"},
        "gold_label",
        {word: word for word in ("entailment", "neutral", "contradiction")},
        dev="dev_matched.tsv",
    ),
    "SST-2": GlueTask(
        "sst2 sentence: {sentence}",
        {"sentence": "sentence"},
        "label",
        {"0": "negative", "1": "positive"},
    ),
    "CoLA": GlueTask(
        "cola sentence: {sentence}",
        {"sentence": "sentence"},
        "label",
        {"0": "unacceptable", "1": "acceptable"},
        header=("source", "label", "mark", "sentence"),
    ),
    "QNLI": GlueTask(
        "qnli question: {question} sentence: {sentence}",
        {"question": "question", "sentence": "sentence"},
        "label",
        {word: word for word in ("entailment", "not_entailment")},
    ),
    "MRPC": GlueTask(
        "mrpc sentence1: {sentence1} sentence2: {sentence2}",
        {"sentence1": "#1 String", "sentence2": "#2 String"},
        "Quality",
        {"0": "not_equivalent", "1": "equivalent"},
    ),
}


def task_of(name: str) -> GlueTask:
    """The task called `name`, or a `UserError` with the nearest name."""
    if name not in TASKS:
        raise UserError(f"lm.data: glue has {', '.join(TASKS)}; found '{name}'.{suggest(name, TASKS)}")
    return TASKS[name]


def read_examples(path: Path, task: GlueTask) -> list[Example]:
    """One example a line of a tab-separated file; quotes in it are plain text.

    Raises:
        UserError: a missing file, column or label; the line (from 1) is named.
    """
    require(path, LAYOUT, SOURCE)
    examples = []
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file, fieldnames=task.header, delimiter="\t", quoting=csv.QUOTE_NONE)
        needed = (*task.columns.values(), task.label)
        for row in rows:
            absent = [column for column in needed if row.get(column) is None]
            if absent:
                raise UserError(
                    f"{path}, line {rows.line_num}: expected the columns {', '.join(needed)}; "
                    f"{', '.join(absent)} not found."
                )
            if row[task.label] not in task.words:
                raise UserError(
                    f"{path}, line {rows.line_num}: expected a label out of {', '.join(task.words)}, "
                    f"found {row[task.label]!r}."
                )
            parts = {name: row[column] for name, column in task.columns.items()}
            examples.append(Example(task.prompt.format(**parts), task.words[row[task.label]]))
    return examples


def load(root: Path, name: str, tests: list[str]) -> TextTask:
    """Task `name`; its dev set gives the followed loss and, when `tests` names it, the accuracy."""
    task = task_of(name)
    if wrong := [test for test in tests if test != name]:
        raise UserError(f"lm.tests: glue/{name} is tested on its own dev set '{name}', found {wrong[0]!r}.")
    folder = root / FOLDER / name
    dev = read_examples(folder / task.dev, task)
    questions = [Question(example.prompt, example.response, "equal") for example in dev]
    return TextTask(read_examples(folder / "train.tsv", task), dev, dict.fromkeys(tests, questions))
