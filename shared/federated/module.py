"""The server as a LightningModule: one training step is one communication round."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import update_bn

from shared.errors import UserError
from shared.federated import engines, roles, saving
from shared.federated.client import FederatedClient, as_client
from shared.federated.codecs import Chain, Codec, chain
from shared.federated.cohort import Cohort
from shared.federated.data import Batches, FederatedData, Round
from shared.federated.errors import NoReplies
from shared.federated.evaluation import pool
from shared.federated.ledger import Ledger
from shared.federated.node import Node, isolated
from shared.federated.payload import Payload
from shared.federated.rounds import RoundsFile
from shared.federated.state import ClientStates

log = logging.getLogger(__name__)
TARGETS = {"received": "evaluate_received", "personal": "evaluate", "after_fit": "evaluate_after_fit"}
POLICIES = ("raise", "exclude")


class FederatedModule(LightningModule):
    """Subclasses write `round(cohort)`: the algorithm, top to bottom. The ordinary `Trainer` drives it.

    Args:
        client: any LightningModule, trained unchanged, or a `FederatedClient`.
        server_optimizer: parameters -> optimiser of the pseudo-gradient theta - mean (Reddi et al. 2021);
            None: the mean becomes the model, bit for bit.
        server_clip: greatest L2 norm of the pseudo-gradient.
        lr_schedule: round -> factor on the clients' learning rates, sent as `lr_scale`.
        codec, down_codec: how replies and broadcasts are encoded (`shared.federated.codecs`).
        targets: what validation measures beside the server's test set: "received" (the shared model on each
            client's test data), "personal" (with what the client keeps), "after_fit" (after training once
            more).
        on_bad_reply: "raise", or "exclude" with a warning.
        engine: how clients are run: auto, sequential, vectorized, flower or an `Engine`.
        spill: a folder for client states that do not fit in memory.
        settings: of the client (`training`, `role`, `buffers`) when `client` is a plain module.

    A round is a pure function of the checkpoint and `seed`, so a resumed run equals an uninterrupted one.
    """

    Client: ClassVar[type[FederatedClient]] = FederatedClient
    server_state: ClassVar[tuple[str, ...]] = ()  # further attributes that a checkpoint holds

    def __init__(
        self,
        client: LightningModule | FederatedClient,
        *,
        server_optimizer: Callable[[Iterable[nn.Parameter]], Optimizer] | None = None,
        server_clip: float | None = None,
        lr_schedule: Callable[[int], float] | None = None,
        codec: Chain | Codec | Sequence[Codec] | None = None,
        down_codec: Chain | Codec | Sequence[Codec] | None = None,
        targets: Sequence[str] = (),
        on_bad_reply: str = "raise",
        engine: str | engines.Engine = "auto",
        spill: Path | None = None,
        seed: int = 0,
        **settings: Any,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.client = as_client(client, self.Client, **settings)
        self.model: LightningModule = self.client.module
        self.server_optimizer, self.server_clip, self.seed = server_optimizer, server_clip, seed
        self.lr_schedule = lr_schedule
        if lr_schedule is not None and self.client.training.keep_optimizer:
            raise UserError("keep_optimizer keeps each client's learning rate; it excludes lr_schedule.")
        self.up, self.down = chain(codec), chain(down_codec)
        if self.down.stateful or self.down.needs_reference:
            raise UserError(
                f"{self.down} cannot encode a broadcast: receivers share no reference and no state."
            )
        self.targets, self.on_bad_reply = tuple(targets), on_bad_reply
        if unknown := set(targets) - set(TARGETS):
            raise UserError(f"unknown target {', '.join(sorted(unknown))}; targets: {', '.join(TARGETS)}.")
        if on_bad_reply not in POLICIES:
            raise UserError(f"on_bad_reply takes {' or '.join(POLICIES)}, found {on_bad_reply!r}.")
        self.engine = engines.make(engine)
        self.ledger, self.states = Ledger(), ClientStates(spill)
        self.artifacts: Path | None = None  # set by the run; receives rounds.jsonl
        self.traffic = {"down": 0, "up": 0}  # bytes of all rounds; evaluation is in the ledger only
        self._rounds: RoundsFile | None = None

    # The algorithm.

    def round(self, cohort: Cohort) -> None:
        """One round of the algorithm."""
        raise NotImplementedError

    def theta(self) -> dict[str, Tensor]:
        """What is sent down of the model: its shared entries, not copied."""
        return self.client.down(self.model)

    def broadcast(self) -> Payload:
        """What clients receive before they train or are evaluated."""
        if self.lr_schedule is None:
            return Payload(model=self.theta())
        return Payload(model=self.theta(), lr_scale=float(self.lr_schedule(self.trainer.global_step)))

    def load(self, entries: dict[str, Tensor]) -> None:
        """Set entries of the model; those not named keep their value.

        Raises:
            UserError: an entry that the model lacks, or of another shape.
        """
        held = {name: tensor for name, _, tensor in roles.entries(self.model)}
        for name, value in entries.items():
            if name not in held or held[name].shape != value.shape:
                found = tuple(held[name].shape) if name in held else "no such entry"
                raise UserError(f"cannot load '{name}' {tuple(value.shape)}; the model has {found}.")
        with torch.no_grad():
            for name, value in entries.items():
                held[name].copy_(value)

    def update(self, mean: dict[str, Tensor]) -> None:
        """Move the model to `mean`: directly, or by the server optimiser on theta - mean. Buffers are set."""
        if self.server_optimizer is None and self.server_clip is None:
            self.load(mean)
        else:
            parameters = {name: p for name, p in self.model.named_parameters() if name in mean}
            self.load({name: value for name, value in mean.items() if name not in parameters})
            for name, p in parameters.items():
                p.grad = p.detach() - mean[name].to(p.device)
            if self.server_clip is not None:
                nn.utils.clip_grad_norm_(parameters.values(), self.server_clip)
            self.server_optimizers[0].step()
            self.model.zero_grad()
        if self.client.buffers == "recompute":
            self._recompute_buffers()

    def configure_server_optimizers(self) -> list[Optimizer]:
        """Optimisers that the server steps itself (`self.server_optimizers`); their state is checkpointed."""
        factory = self.server_optimizer
        if factory is None and self.server_clip is not None:
            factory = lambda parameters: torch.optim.SGD(parameters, lr=1.0)  # noqa: E731
        return [factory(self.model.parameters())] if factory else []

    @property
    def server_optimizers(self) -> list[Optimizer]:
        return self.trainer.optimizers[1:]

    def evaluate_clients(self, cohort: Cohort) -> dict[str, float]:
        """Metrics of `targets`: "received/val/acc" over samples, "received/val/acc/clients" over clients."""
        found: dict[str, float] = {}
        held_out = cohort.only(self.data.held_out)
        for target in self.targets:
            for who, part in ((target, cohort.everyone), (f"new/{target}", held_out)):
                replies = part.call(
                    TARGETS[target],
                    self.broadcast(),
                    codec=Chain(),
                    phase="evaluate",
                    save_state=False,
                )
                found |= {f"{who}/{name}": value for name, value in pool(replies).items()}
        return found

    def evaluate_tasks(self, cohort: Cohort, metric: str) -> list[float]:
        """`metric` on the clients' test data of each task seen so far: a row of `AccuracyMatrix`."""
        row = []
        for task in range(cohort.stage + 1):
            inbox = self.broadcast().plus(task=task)
            replies = cohort.everyone.call(
                "evaluate", inbox, codec=Chain(), phase="evaluate", save_state=False
            )
            row.append(pool(replies)[metric])
        return row

    # What the Trainer calls.

    def configure_optimizers(self) -> list[Optimizer]:
        return [RoundCounter(), *self.configure_server_optimizers()]

    def on_fit_start(self) -> None:
        if self.trainer.precision == "16-mixed":
            raise UserError(
                "a round has no loss to scale. Use trainer.precision=32-true and "
                "LocalTraining(precision='16-mixed') for the clients."
            )

    def training_step(self, batch: Round, batch_idx: int) -> None:
        number, clients = batch
        self._check_cohort(number, clients)
        self.client.device = self.device
        cohort = Cohort(self, number, clients)
        with isolated(self.seed, "server", number, device=self.device):
            try:
                self.round(cohort)
            except NoReplies as reason:
                log.warning("round %d: %s The model stays.", number, reason)
        counter = self.optimizers()
        (counter[0] if isinstance(counter, list) else counter).step()
        self._log_round(cohort)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        if batch is not None:
            with self._lent_log():
                self.model.validation_step(batch, batch_idx)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        if batch is None:
            return
        if is_overridden("test_step", self.model):
            with self._lent_log():
                self.model.test_step(batch, batch_idx)
        else:
            with self._lent_log(
                lambda name: name.replace("val", "test", 1) if name.startswith("val") else name
            ):
                self.model.validation_step(batch, batch_idx)

    def on_validation_epoch_end(self) -> None:
        self._evaluate("on_validation_epoch_end", "")

    def on_test_epoch_end(self) -> None:
        self._evaluate("on_test_epoch_end", "test/")

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["federated"] = saving.content(self)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        saving.restore(self, checkpoint.get("federated"))
        planned = self.data.rounds * (self.trainer.max_epochs or 1)
        if self.trainer.state.fn == "fit" and checkpoint["global_step"] >= planned:
            log.warning("all %d rounds are done in this checkpoint: there is nothing to train.", planned)

    def identity(self) -> dict[str, Any]:
        """What a resumed run must share with the one that wrote the checkpoint."""
        return {
            "algorithm": f"{type(self).__module__}.{type(self).__qualname__}",
            "client": f"{type(self.client).__module__}.{type(self.client).__qualname__}",
            "training": repr(self.client.training),
            "seed": self.seed,
            "codec": repr(self.up),
            "down_codec": repr(self.down),
            **self.states.identity(),
            **self.data.identity(),
        }

    # Plumbing.

    @property
    def data(self) -> FederatedData:
        data = self.trainer.datamodule
        if not isinstance(data, FederatedData):
            raise UserError(
                f"{type(self).__name__} needs a FederatedData, found {type(data).__name__}: "
                "trainer.fit(module, datamodule=FederatedData(...))."
            )
        return data

    def setup(self, stage: str) -> None:
        if hasattr(self.engine, "attach"):
            self.engine.attach(self)
        if self.trainer.world_size > 1:
            from shared.federated.engines.ranks import Ranks

            if not isinstance(self.engine, Ranks):
                self.engine = Ranks(self.engine)
        self.node = Node(self.client, self.data, self.states, up=self.up, down=self.down, seed=self.seed)

    def teardown(self, stage: str) -> None:
        if hasattr(self.engine, "close"):
            self.engine.close()

    def _check_cohort(self, number: int, clients: list[int]) -> None:
        known, held_out = len(self.data.partitions[0]), set(self.data.held_out)
        wrong = sorted({c for c in clients if not 0 <= c < known or c in held_out})
        if wrong:
            raise UserError(
                f"the sampler drew for round {number} clients that do not train: {wrong}; expected some of "
                f"0 to {known - 1}, without held_out."
            )
        if len(set(clients)) < len(clients):
            raise UserError(f"the sampler drew a client twice for round {number}: {clients}.")

    def _evaluate(self, hook: str, prefix: str) -> None:
        if is_overridden(hook, self.model):
            with self._lent_log():
                getattr(self.model, hook)()
        if not self.targets or self.trainer.sanity_checking:
            return
        number, self.client.device = self.trainer.global_step, self.device
        with torch.inference_mode(False), isolated(self.seed, "evaluate", number, device=self.device):
            found = self.evaluate_clients(Cohort(self, number, self.data.training_clients))
        self.log_dict({prefix + name: value for name, value in found.items()}, batch_size=1)

    def _log_round(self, cohort: Cohort) -> None:
        record = cohort.record
        for direction, size in record.bytes.items():
            self.traffic[direction] += size
        values = {
            **record.means(),
            "round/participants": len(record.participants),
            "round/up_bytes": record.bytes["up"],
            "round/down_bytes": record.bytes["down"],
            "total/up_bytes": self.traffic["up"],
            "total/down_bytes": self.traffic["down"],
        }
        exact = {name: torch.tensor(value, dtype=torch.float64) for name, value in values.items()}
        self.log_dict(exact, on_step=True, on_epoch=False, batch_size=1)
        if self.artifacts is not None and self.trainer.is_global_zero:
            self._rounds = self._rounds or RoundsFile(self.artifacts / "rounds.jsonl")
            self._rounds.add(cohort.round, cohort.clients, record, values)

    def _recompute_buffers(self) -> None:
        if self.data.public is None:
            raise UserError(
                "buffers=recompute needs FederatedData(public=...), data that the server may read."
            )
        inputs = (batch[0] for batch in Batches(self.data.public, self.data.eval_batch_size))
        update_bn(inputs, self.model, device=self.device)

    @contextlib.contextmanager
    def _lent_log(self, rename: Callable[[str], str] = lambda name: name) -> Iterator[None]:
        """The inner module logs through this one."""
        self.model.log = lambda name, *args, **kwargs: self.log(rename(name), *args, **kwargs)
        try:
            yield
        finally:
            del self.model.log


class RoundCounter(Optimizer):
    """Steps nothing and is counted by Lightning: `trainer.global_step` is the number of finished rounds."""

    def __init__(self) -> None:
        super().__init__([torch.zeros(1)], {})

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        return closure() if closure else None
