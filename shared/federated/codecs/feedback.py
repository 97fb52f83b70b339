"""Error feedback: what a lossy codec dropped is added to the client's next message (Seide et al. 2014)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from shared.federated.codecs import Codec, Context


class ErrorFeedback(Codec):
    """Wraps one representation (`ErrorFeedback(TopK(0.01))`) and keeps its error in the client's state.

    Put `Delta` before it: feedback makes sense on updates.
    """

    unbiased = False
    stateful = True

    def __init__(self, codec: Codec) -> None:
        super().__init__(codec.only)
        self.codec = codec
        self.needs_reference = codec.needs_reference

    def encode(self, name: str, value: Tensor, context: Context) -> tuple[dict[str, Tensor], dict] | None:
        errors = context.state.setdefault("error_feedback", {})
        wanted = value + errors[name] if name in errors else value
        encoded = self.codec.encode(name, wanted, context)
        if encoded is not None:
            errors[name] = wanted - self.codec.decode(name, *encoded, context)
        return encoded

    def decode(self, name: str, parts: dict[str, Tensor], info: dict[str, Any], context: Context) -> Tensor:
        return self.codec.decode(name, parts, info, context)
