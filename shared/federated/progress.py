"""What tables of federated runs show: how good, after how many rounds, for how many bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from shared.errors import UserError
from shared.training.logging import record


class Progress(Callback):
    """Follows one validation metric; writes into the run's history and metrics at every evaluation.

    With the metric "val/accuracy", `last=10` and the target 0.8:

    - `last/accuracy`, `best/accuracy`, `last10/accuracy`: of the last, the best, the mean of the last ten
      evaluations (of fewer while there are fewer);
    - `bytes_up`, `bytes_down`, `mb_up`, `mb_down`: traffic of all rounds so far, without evaluation;
      1 MB = 10^6 bytes;
    - `reached_80`: 1 or 0; `rounds_to_80`, `bytes_up_to_80`, `bytes_down_to_80`, `mb_to_80` (both ways):
      until the first evaluation at or above 80 %. While it is not reached they count what has been spent, so
      a run that never gets there has its whole budget there: a lower bound, with `reached_80` = 0.

    Args:
        metric: as the local module's `validation_step` logs it, or of a client target, as in
            "personal/val/accuracy"; "val/" is left out of the names above.
        targets: values to reach. Their names hold no metric, so only one `Progress` of a run has any.
        last: how many evaluations the mean takes.
        scale: multiplies `last/`, `best/` and `last<k>/` (100: per cent).
    """

    def __init__(
        self,
        metric: str = "val/accuracy",
        targets: Sequence[float] = (),
        *,
        last: int = 10,
        scale: float = 1.0,
    ) -> None:
        self.metric, self.targets, self.last, self.scale = metric, tuple(targets), last, scale
        self.name = metric.replace("val/", "", 1)
        self.values: list[float] = []
        self.reached: dict[str, list[int]] = {}  # target -> [rounds, bytes up, bytes down]

    @property
    def state_key(self) -> str:
        return f"Progress({self.metric})"

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        if trainer.sanity_checking or trainer.state.fn != "fit":
            return
        if self.metric not in trainer.callback_metrics:
            known = ", ".join(sorted(trainer.callback_metrics)) or "nothing"
            raise UserError(f"no evaluation logged '{self.metric}'; logged: {known}.")
        value = float(trainer.callback_metrics[self.metric])
        self.values.append(value)
        spent = [trainer.global_step, module.traffic["up"], module.traffic["down"]]
        for target in self.targets:
            if value >= target:
                self.reached.setdefault(label(target), spent)
        record(module, self.summary(spent))

    def summary(self, spent: Sequence[int]) -> dict[str, float]:
        """The metrics after `spent` = [rounds, bytes up, bytes down]."""
        recent = self.values[-self.last :]
        found = {
            f"last/{self.name}": self.scale * self.values[-1],
            f"best/{self.name}": self.scale * max(self.values),
            f"last{self.last}/{self.name}": self.scale * sum(recent) / len(recent),
            "bytes_up": spent[1],
            "bytes_down": spent[2],
            "mb_up": spent[1] / 1e6,
            "mb_down": spent[2] / 1e6,
        }
        for name in map(label, self.targets):
            rounds, up, down = self.reached.get(name, spent)
            found[f"reached_{name}"] = float(name in self.reached)
            found[f"rounds_to_{name}"] = rounds
            found[f"bytes_up_to_{name}"] = up
            found[f"bytes_down_to_{name}"] = down
            found[f"mb_to_{name}"] = (up + down) / 1e6
        return found

    def state_dict(self) -> dict[str, Any]:
        return {"values": list(self.values), "reached": {name: list(at) for name, at in self.reached.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = list(state["values"])
        self.reached = {name: list(at) for name, at in state["reached"].items()}


def label(target: float) -> str:
    """0.8 -> "80", 0.855 -> "85.5": the name of a target."""
    return f"{100 * target:g}"
