"""What the text loaders return, and the one reader of JSON record files they share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from projects.nonzero_lora.answers import NEEDS_NUMBER
from shared.errors import UserError

PROMPT = (
    "Below is an instruction that describes a task. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Response:"
)
PROMPT_WITH_INPUT = (
    "Below is an instruction that describes a task, paired with an input that provides further context. "
    "Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n### Response:"
)


@dataclass(frozen=True)
class Example:
    """A text to learn from: the loss may be restricted to `response`."""

    prompt: str
    response: str


@dataclass(frozen=True)
class Question:
    """A text to continue; `rule` names how `answers.RULES` compares the continuation with `answer`."""

    prompt: str
    answer: str
    rule: str


@dataclass(frozen=True)
class TextTask:
    """Training examples, examples whose loss is followed, and the test sets by name."""

    train: list[Example]
    heldout: list[Example] = field(default_factory=list)
    tests: dict[str, list[Question]] = field(default_factory=dict)


def alpaca(instruction: str, context: str = "") -> str:
    """The Alpaca prompt: Instruction, Input when there is one, Response."""
    if context:
        return PROMPT_WITH_INPUT.format(instruction=instruction, input=context)
    return PROMPT.format(instruction=instruction)


def require(path: Path, layout: str, source: str) -> Path:
    """`path`, or a `UserError` that says which layout is expected and where to get it."""
    if not path.is_file():
        raise UserError(
            f"{path} is missing. Expected layout below data.root: {layout}. Get it from {source}."
        )
    return path


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records of a JSON list, or of a file with one JSON object a line.

    Raises:
        UserError: not JSON, or a record that is not an object; file and index (from 0) are named.
    """
    text = path.read_text("utf-8-sig")
    # Not splitlines: it also cuts at separators that JSON allows inside a text.
    lines = [text] if text.lstrip().startswith("[") else [line for line in text.split("\n") if line.strip()]
    records: list[Any] = []
    for line in lines:
        try:
            found = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(
                f"{path}, record {len(records)}: not JSON ({error}). Fetch the file again."
            ) from None
        records += found if isinstance(found, list) else [found]
    for index, record in enumerate(records):
        if not isinstance(record, dict):
            raise UserError(f"{path}, record {index}: expected an object, found {str(record)[:60]!r}.")
    return records


def text_field(
    record: Mapping[str, Any], key: str, path: Path, index: int, default: str | None = None
) -> str:
    """The text under `key`; numbers are turned into text, a list of one element into that element.

    Raises:
        UserError: the key is absent (and there is no default) or holds something else.
    """
    value = record.get(key, default)
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool):
        value = str(value).lower()
    if isinstance(value, int | float):
        value = repr(value)
    if not isinstance(value, str):
        raise UserError(
            f"{path}, record {index}: expected text under '{key}', found {value!r}. "
            f"Its keys: {', '.join(record)}."
        )
    return value


def question(prompt: str, answer: str, rule: str, path: Path, index: int) -> Question:
    """A `Question`, after a check that its answer is one that `rule` can compare."""
    if rule in NEEDS_NUMBER:
        try:
            float(answer.replace(",", ""))
        except ValueError:
            raise UserError(
                f"{path}, record {index}: expected a number as answer, found {answer!r}."
            ) from None
    return Question(prompt, answer.strip(), rule)
