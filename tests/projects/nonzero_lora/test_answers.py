"""Answer extraction: the published rules on strings that trip simpler ones."""

import pytest

from projects.nonzero_lora.answers import (
    CHOICES,
    RULES,
    after_mark,
    boxed,
    first_choice,
    first_letter,
    last_number,
    normalise_math,
    whole_number,
)
from projects.nonzero_lora.data.llm_adapters import ARITHMETIC, COMMONSENSE, rule_of


def test_every_test_set_has_a_rule() -> None:
    assert len({*ARITHMETIC, *COMMONSENSE}) == 14
    assert all(rule_of(test) in RULES for test in (*ARITHMETIC, *COMMONSENSE))


@pytest.mark.parametrize(
    ("task", "output", "expected"),
    [
        ("boolq", "the correct answer is false, not true", "false"),
        ("boolq", "True", ""),
        ("piqa", "solution3 or solution2", "solution2"),
        ("social_i_qa", "answer6, answer5", "answer5"),
        ("ARC-Challenge", "answer12", "answer1"),
        ("openbookqa", "", ""),
        ("hellaswag", "the correct answer is ending4", "ending4"),
        ("winogrande", "Option1 is wrong: option2", "option2"),
    ],
)
def test_first_choice(task: str, output: str, expected: str) -> None:
    assert first_choice(output, CHOICES[task]) == expected
    assert RULES[f"choice/{task}"](output, expected or "x") is bool(expected)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("It costs $1,234.50 in 2 years", 2.0),
        ("so 1,234.50.", 1234.5),
        ("from -7", -7.0),
        ("5-3", -3.0),
        ("a total of 18 eggs.", 18.0),
        ("no digit", None),
    ],
)
def test_last_number(output: str, expected: float | None) -> None:
    assert last_number(output) == expected


def test_numbers_are_equal_within_a_thousandth() -> None:
    assert RULES["number"]("about 3.3339", "3.333")
    assert not RULES["number"]("about 3.3351", "3.333")
    assert RULES["number"]("4", "4.0")
    assert not RULES["number"]("none", "4.0")


def test_first_letter_even_inside_a_word() -> None:
    assert first_letter("(C) 252 gms") == "C"
    assert first_letter("The answer is E") == "E"
    assert first_letter("Because of that, A") == "B"  # the published rule, kept as it is
    assert first_letter("none of them") == ""


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("x. The answer is: 18", "18"),
        ("The answer is: 3.\nThe answer is: 4.", "4"),
        ("The answer is: $3.50.\nNext question", "$3.50"),
        ("The answer is 18", None),
    ],
)
def test_after_mark(output: str, expected: str | None) -> None:
    assert after_mark(output) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$1,234,567", 1234567),
        ("18 eggs of 20", 18),
        ("-4", -4),
        ("3.7", 4),
        ("7/2 hours", 4),
        ("9/0", 9),
        (".9", 1),
        ("none", None),
    ],
)
def test_whole_number(text: str, expected: int | None) -> None:
    assert whole_number(text) == expected


def test_gsm8k_after_metamath() -> None:
    assert RULES["final number"]("3 + 4 = 7. The answer is: 7", "7")
    assert RULES["final number"]("The answer is: 1,000", "1000")
    assert not RULES["final number"]("so it is 7", "7")  # without the mark nothing counts
    assert not RULES["final number"]("The answer is: seven", "7")


def test_boxed_matches_braces() -> None:
    assert boxed(r"so \boxed{1} and \boxed{\frac{1}{2}} hold") == r"\frac{1}{2}"
    assert boxed(r"\boxed{{a}") == "{a}"
    assert boxed("17") == "17"


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (r"\dfrac12", r"\frac{1}{2}"),
        ("0.5", r"\frac{1}{2}"),
        ("1/2", r"\frac{1}{2}"),
        (r"\frac1{72}", r"\frac{1}{72}"),
        (r"x = 5", "5"),
        (r"\sqrt3", r"\sqrt{3}"),
        (r"90^\circ", "90"),
        (r"12\text{ cm}", "12"),
        (r"50\%", "50"),
        (r"\$4.20", "4.20"),
        (".25", "0.25"),
        (r"\left( 1, 2 \right)", "(1,2)"),
        (r"(1,\!000)", "(1,000)"),
        (r"\leftarrow", r"\leftarrow"),
    ],
)
def test_equal_expressions(left: str, right: str) -> None:
    assert normalise_math(left) == normalise_math(right)


@pytest.mark.parametrize(
    ("left", "right"), [("2/4", "1/2"), ("x+1=y", "y"), ("1", "-1"), (r"\frac{1}{2}", r"\frac{2}{1}")]
)
def test_different_expressions(left: str, right: str) -> None:
    assert normalise_math(left) != normalise_math(right)


def test_math_after_metamath() -> None:
    rule = RULES["final expression"]
    assert rule(r"Thus it halves. The answer is: \dfrac{1}{2}", r"we get $\boxed{\frac12}$")
    assert rule(r"The answer is: $\boxed{x=3}$", "3")
    assert not rule(r"\boxed{3}", "3")


def test_glue_words_must_be_equal() -> None:
    assert RULES["equal"](" entailment\n", "entailment")
    assert not RULES["equal"]("not_entailment", "entailment")
