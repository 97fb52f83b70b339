"""Reading an answer out of generated text and comparing it with the right one, task by task.

`RULES` maps the name of a rule to a function (output, gold) -> bool. The rules are those of the LLM-Adapters
evaluation (Hu et al. 2023) for its fourteen test sets, rules after the PiSSA evaluation for GSM8K and MATH
after MetaMathQA, and equality for GLUE in text form. Three PiSSA rules are more lenient here: thousands
separators ("1,234,567"), money and per cent signs around a number, and a boxed number all count.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

TOLERANCE = 1e-3  # on numbers in LLM-Adapters' arithmetic sets
MARK = "The answer is:"  # MetaMathQA responses end with it

CHOICES = {
    "boolq": ("true", "false"),
    "piqa": ("solution1", "solution2"),
    "social_i_qa": tuple(f"answer{i}" for i in range(1, 6)),
    "ARC-Challenge": tuple(f"answer{i}" for i in range(1, 6)),
    "ARC-Easy": tuple(f"answer{i}" for i in range(1, 6)),
    "openbookqa": tuple(f"answer{i}" for i in range(1, 6)),
    "hellaswag": tuple(f"ending{i}" for i in range(1, 5)),
    "winogrande": ("option1", "option2"),
}


def first_choice(output: str, options: tuple[str, ...]) -> str:
    """The option that occurs first in `output`, or ""."""
    found = re.search("|".join(map(re.escape, options)), output)
    return found.group() if found else ""


def first_letter(output: str) -> str:
    """The first capital A-E anywhere in `output`, even inside a word, as the published rule has it; or ""."""
    found = re.search("[A-E]", output)
    return found.group() if found else ""


def last_number(output: str) -> float | None:
    """The last number in `output`, commas removed first."""
    found = re.findall(r"-?\d+\.?\d*", output.replace(",", ""))
    return float(found[-1]) if found else None


def after_mark(output: str) -> str | None:
    """What follows the last "The answer is:", up to a full stop that ends a line or the text."""
    _, mark, rest = output.rpartition(MARK)
    if not mark:
        return None
    return rest.split(".\n")[0].strip().removesuffix(".").strip()


def whole_number(text: str) -> int | None:
    """The first number or fraction in `text`, rounded; commas between digits are skipped."""
    found = re.search(r"[-+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:/\d+)?", text)
    if not found:
        return None
    try:
        return round(Fraction(found.group().replace(",", "")))
    except (ValueError, ZeroDivisionError):
        above = found.group().replace(",", "").split("/")[0]
        return round(float(above))


def boxed(text: str) -> str:
    r"""The content of the last \boxed{...} in `text`, braces matched; `text` itself when there is none."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return text
    depth, begin = 1, start + len("\\boxed{")
    for place in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[begin:place]
    return text[begin:]


def normalise_math(expression: str) -> str:
    r"""A LaTeX answer in the plain form in which answers to MATH are compared (Hendrycks et al. 2021).

    Dropped: spaces, line breaks, \!, \left, \right, degrees, dollar and percent signs, units (`\text{ ...` at
    the end), and a short name before an equals sign ("x =").
    Unified: \dfrac and \tfrac to \frac, braces around the arguments of \frac and \sqrt, a zero before a
    decimal point, 0.5 and a/b to \frac{a}{b}. Nothing is computed: 2/4 differs from 1/2.
    """
    text = expression.replace("\n", "").replace("\\!", "").replace("\\\\", "\\")
    text = re.sub(r"\\[dt]frac", r"\\frac", text)
    text = re.sub(r"\\(left|right)(?![a-z])", "", text)
    text = re.sub(r"\^\s*(\{\\circ\}|\\circ)", "", text)
    text = text.replace("\\$", "").replace("$", "").split("\\text{ ")[0]
    text = text.replace("\\%", "").replace("%", "")
    text = re.sub(r"(^|[ {])\.(?=\d)", r"\g<1>0.", text)
    left, equals, right = text.partition("=")
    if equals and "=" not in right and len(left.strip()) <= 2:
        text = right
    text = text.replace(" ", "")
    text = re.sub(r"\\sqrt([^{\\])", r"\\sqrt{\1}", text)
    text = re.sub(r"\\frac([^{\\])([^{\\])", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\frac([^{\\])(?=\{)", r"\\frac{\1}", text)
    if text == "0.5":
        return "\\frac{1}{2}"
    return re.sub(r"^(-?\d+)/(-?\d+)$", r"\\frac{\1}{\2}", text)


def _number(output: str, gold: str) -> bool:
    found = last_number(output)
    return found is not None and abs(found - float(gold.replace(",", ""))) <= TOLERANCE


def _final_number(output: str, gold: str) -> bool:
    found = after_mark(output)
    number = None if found is None else whole_number(found)
    return number is not None and float(number) == float(gold.replace(",", ""))


def _final_expression(output: str, gold: str) -> bool:
    found = after_mark(output)
    return found is not None and normalise_math(boxed(found)) == normalise_math(boxed(gold))


def _choice(options: tuple[str, ...]) -> Callable[[str, str], bool]:
    return lambda output, gold: first_choice(output, options) == gold


RULES: dict[str, Callable[[str, str], bool]] = {
    **{f"choice/{task}": _choice(options) for task, options in CHOICES.items()},
    "number": _number,
    "letter": lambda output, gold: first_letter(output) == gold,
    "final number": _final_number,
    "final expression": _final_expression,
    "equal": lambda output, gold: output.strip() == gold,
}
NEEDS_NUMBER = ("number", "final number")  # rules whose right answer must read as a number
