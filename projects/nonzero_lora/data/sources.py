"""Where the text of `lm.data` comes from, and what a run of the `lm` block needs. Light to import."""

from __future__ import annotations

from typing import Any

from shared.data.catalogue import Requirement, huggingface_requirement, requirement
from shared.errors import UserError, suggest

SOURCES = ("brown", "llm-adapters", "metamath", "glue")


def source_of(name: str) -> tuple[str, str]:
    """`lm.data` in two parts: "glue/MNLI" -> ("glue", "MNLI")."""
    source, _, part = name.partition("/")
    if source not in SOURCES:
        raise UserError(
            f"lm.data takes brown/GENRE, llm-adapters/SET, metamath or glue/TASK; found '{name}'."
            + suggest(source, SOURCES)
        )
    return source, part


def requirements(config: Any) -> list[Requirement]:
    """Weights and data that a run of the `lm` block needs."""
    lm, source = config.lm, source_of(config.lm.data)[0]
    embedded = lm.model == "smollm2"
    weights = requirement("smollm2") if embedded else huggingface_requirement(lm.model)
    if source == "brown":
        return [weights, requirement("brown")]
    return [weights, requirement(source, config.data.root)]
