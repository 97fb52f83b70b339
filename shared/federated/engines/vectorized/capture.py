"""What a module sees of its trainer, and logs, while it stands for many clients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torchmetrics import Metric

from shared.federated.engines.vectorized.refusal import Refusal
from shared.federated.engines.vectorized.template import Differs


class Agreed:
    """`module.trainer` of several clients: what they agree on, such as the epoch."""

    def __init__(self) -> None:
        self.ask([])

    def ask(self, trainers: Sequence[Any]) -> None:
        """Stand for these from now on; `asked` says whether anything was read since."""
        object.__setattr__(self, "_trainers", list(trainers))
        object.__setattr__(self, "asked", False)

    def __getattr__(self, name: str) -> Any:
        object.__setattr__(self, "asked", True)
        return self.value([getattr(trainer, name) for trainer in self._trainers], f"trainer.{name}")

    @staticmethod
    def value(values: Sequence[Any], name: str) -> Any:
        """The common value, or what refuses to be read."""
        first = values[0]
        return first if all(v is first or v == first for v in values) else Differs(name, structural=False)

    def __setattr__(self, name: str, value: Any) -> None:
        raise Refusal(f"training_step sets trainer.{name}")


class Capture:
    """Stands in for `LightningModule.log` while all lanes step."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """A new step begins."""
        self.calls: list[tuple[str, Any, dict]] = []
        self.tensors: list[Tensor] = []

    def log(self, name: str, value: Any, *args: Any, on_epoch: bool | None = None, **settings: Any) -> None:
        if isinstance(value, Metric):
            raise Refusal(f"'{name}' is a metric object")
        kept = {"on_epoch": on_epoch}
        if isinstance(value, Tensor):
            self.tensors.append(value.detach().clone())  # a parameter changes in this step
            value = None
        self.calls.append((name, value, kept))


def rows_of(
    calls: Sequence[tuple[str, Any, dict]], tensors: Sequence[Tensor], lanes: int
) -> list[list[tuple[str, Any, dict]]]:
    """The calls as each lane would have made them; `tensors` (K, ...) of what was logged as tensors."""
    if not calls:
        return [[] for _ in range(lanes)]
    columns, given = [], iter(tensors)
    for name, value, settings in calls:
        values = next(given).unbind(0) if value is None else [value] * lanes
        columns.append([(name, row, settings) for row in values])
    return [list(calls) for calls in zip(*columns, strict=True)]
