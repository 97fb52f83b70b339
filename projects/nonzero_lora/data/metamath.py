"""MetaMathQA in the PiSSA data set, tested on GSM8K and MATH (as in arXiv 2602.04998)."""

from __future__ import annotations

from pathlib import Path

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

FOLDER = "pissa-dataset"
LAYOUT = (
    f"{FOLDER}/metamath/train.json and test.json, records {{instruction, output}}, the tests also {{type}}"
)
SOURCE = "https://huggingface.co/datasets/fxmeng/pissa-dataset"

TESTS = {"gsm8k": "final number", "math": "final expression"}  # value of `type` in test.json -> answer rule


def read_examples(path: Path) -> list[Example]:
    """{instruction, output} records as Alpaca prompts with their responses."""
    require(path, LAYOUT, SOURCE)
    return [
        # The line break before the end mark is the re-evaluation's.
        Example(
            prompt_of(text_field(record, "instruction", path, index)),
            text_field(record, "output", path, index) + "\n",
        )
        for index, record in enumerate(read_records(path))
    ]


def prompt_of(instruction: str) -> str:
    """`instruction` in the Alpaca prompt, unless it is one already (a test file may hold whole prompts)."""
    return instruction if "### Response:" in instruction else alpaca(instruction)


def read_questions(path: Path) -> dict[str, list[Question]]:
    """The questions of `test.json` by their `type`: gsm8k and math."""
    require(path, LAYOUT, SOURCE)
    tests: dict[str, list[Question]] = {name: [] for name in TESTS}
    for index, record in enumerate(read_records(path)):
        kind = text_field(record, "type", path, index)
        if kind not in TESTS:
            raise UserError(f"{path}, record {index}: expected type {' or '.join(TESTS)}, found '{kind}'.")
        prompt = prompt_of(text_field(record, "instruction", path, index))
        tests[kind].append(
            question(prompt, text_field(record, "output", path, index), TESTS[kind], path, index)
        )
    return tests


def load(root: Path, tests: list[str], train_examples: int) -> TextTask:
    """The training set and `tests`; the loss is followed on the records after the first `train_examples`."""
    for test in tests:
        if test not in TESTS:
            raise UserError(
                f"lm.tests: metamath has the test sets {', '.join(TESTS)}; found '{test}'."
                + suggest(test, TESTS)
            )
    examples = read_examples(root / FOLDER / "metamath" / "train.json")
    questions = read_questions(root / FOLDER / "metamath" / "test.json") if tests else {}
    cut = train_examples or len(examples)
    return TextTask(examples[:cut], examples[cut:], {test: questions[test] for test in tests})
