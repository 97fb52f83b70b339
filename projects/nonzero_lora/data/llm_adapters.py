"""LLM-Adapters (Hu et al. 2023): Math10K and Commonsense170K/15K with their fourteen test sets."""

from __future__ import annotations

from pathlib import Path

from projects.nonzero_lora.answers import CHOICES
from projects.nonzero_lora.data.examples import (
    Example,
    Question,
    TextTask,
    alpaca,
    question,
    read_records,
    require,
    text_field,
)
from shared.errors import UserError, suggest

FOLDER = "LLM-Adapters"
LAYOUT = f"{FOLDER}/ft-training_set/{{NAME}}.json and {FOLDER}/dataset/{{TEST}}/test.json, as cloned"
SOURCE = "https://github.com/AGI-Edgerunners/LLM-Adapters"

TRAINING_SETS = ("math_10k", "commonsense_15k", "commonsense_170k")
ARITHMETIC = ("AddSub", "MultiArith", "SingleEq", "SVAMP", "gsm8k", "AQuA")
COMMONSENSE = (
    "boolq",
    "piqa",
    "social_i_qa",
    "hellaswag",
    "winogrande",
    "ARC-Easy",
    "ARC-Challenge",
    "openbookqa",
)


def training_file(root: Path, name: str) -> Path:
    """Where the training set `name` lies below `data.root`."""
    if name not in TRAINING_SETS:
        raise UserError(
            f"lm.data: llm-adapters has the training sets {', '.join(TRAINING_SETS)}; found '{name}'."
            + suggest(name, TRAINING_SETS)
        )
    return root / FOLDER / "ft-training_set" / f"{name}.json"


def test_file(root: Path, name: str) -> Path:
    """Where the test set `name` lies below `data.root`."""
    known = (*ARITHMETIC, *COMMONSENSE)
    if name not in known:
        raise UserError(
            f"lm.tests: llm-adapters has the test sets {', '.join(known)}; found '{name}'."
            + suggest(name, known)
        )
    return root / FOLDER / "dataset" / name / "test.json"


def rule_of(test: str) -> str:
    """Name of the answer rule of a test set."""
    if test in CHOICES:
        return f"choice/{test}"
    return "letter" if test == "AQuA" else "number"


def read_examples(path: Path) -> list[Example]:
    """{instruction, input, output} records as Alpaca prompts with their responses."""
    require(path, LAYOUT, SOURCE)
    examples = []
    for index, record in enumerate(read_records(path)):
        instruction = text_field(record, "instruction", path, index)
        prompt = alpaca(instruction, text_field(record, "input", path, index, default=""))
        examples.append(Example(prompt + "\n", text_field(record, "output", path, index)))
    return examples


def read_questions(path: Path, test: str) -> list[Question]:
    """{instruction, input, answer} records of a test set as Alpaca prompts with their right answers."""
    require(path, LAYOUT, SOURCE)
    questions = []
    for index, record in enumerate(read_records(path)):
        instruction = text_field(record, "instruction", path, index)
        prompt = alpaca(instruction, text_field(record, "input", path, index, default=""))
        answer = text_field(record, "answer", path, index)
        questions.append(question(prompt + "\n", answer, rule_of(test), path, index))
    return questions


def load(root: Path, name: str, tests: list[str]) -> TextTask:
    """Training set `name` and `tests`; the loss is followed on the worked answers of the test sets.

    Worked answers are the `output` fields; those of the arithmetic sets were written by a model and are not
    always right: they serve for a loss, never for accuracy.
    """
    files = {test: test_file(root, test) for test in tests}
    train = read_examples(training_file(root, name))
    heldout = [
        Example(alpaca(record["instruction"], record.get("input", "")) + "\n", record["output"])
        for path in files.values()
        for record in read_records(require(path, LAYOUT, SOURCE))
        if isinstance(record.get("output"), str) and isinstance(record.get("instruction"), str)
    ]
    return TextTask(train, heldout, {test: read_questions(path, test) for test, path in files.items()})
