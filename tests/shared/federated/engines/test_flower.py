"""Flower's engine: the results of `Sequential`, states that stay at the clients, and what can go wrong."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

import projects
from shared.errors import UserError
from shared.federated import engines
from shared.federated.algorithms.fedavg import FedAvg
from shared.federated.algorithms.scaffold import Scaffold
from shared.federated.client import FederatedClient
from shared.federated.codecs import Chain
from shared.federated.codecs.delta import Delta
from shared.federated.codecs.feedback import ErrorFeedback
from shared.federated.codecs.noise import Clip, Gaussian
from shared.federated.codecs.quantise import Uniform
from shared.federated.codecs.sparse import TopK
from shared.federated.errors import ClientError
from shared.federated.module import FederatedModule
from shared.federated.node import Task
from shared.federated.payload import Payload
from shared.federated.sampling import uniform
from shared.training.experiment import run_experiment

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict
from flwr.supercore.task_identity import TaskIdentity

from shared.federated.engines.flower import app as flower_app
from shared.federated.engines.flower import messages
from shared.federated.engines.flower.client import client_app, number_of
from shared.federated.engines.flower.server import Flower
from shared.federated.engines.flower.site import Parts, Site
from shared.federated.engines.flower.states import RemoteStates, StateFolder

REPO = Path(__file__).parent.parent.parent.parent.parent
TOY = (
    "tests/shared/federated/engines/fedtoy/__init__.py",
    "tests/shared/federated/engines/fedtoy/config.py",
    "tests/shared/federated/engines/fedtoy/module.py",
)


def crossed(content: RecordDict) -> RecordDict:
    """Through Flower's own serialised form."""
    return recorddict_from_proto(ProtoRecordDict.FromString(recorddict_to_proto(content).SerializeToString()))


class Loopback:
    """A grid whose nodes work in this process when asked for replies; `spoil` may change or withhold one."""

    def __init__(self, parts: Callable[[int], Parts], nodes: Iterable[int], folder: Path) -> None:
        self.parts, self.folder, self.nodes = parts, folder, set(nodes)
        self.spoil: Callable[[int, str, RecordDict], RecordDict | Error | None] = lambda client, kind, r: r
        self.sent: list[Message] = []
        self.waiting: dict[str, Message] = {}
        self.secret = ""
        self.app = client_app(self.site)

    def site(self, context: Context) -> Site:
        number = context.node_id - 100
        return Site(number, self.folder, self.parts(number), secret=self.secret)

    def context(self, node: int) -> Context:
        return Context(1, node, {"partition-id": node - 100}, RecordDict(), {})

    def get_node_ids(self) -> list[int]:
        return [100 + node for node in self.nodes]

    def push_messages(self, sent: list[Message]) -> list[str]:
        names = [f"message-{len(self.sent) + i}" for i in range(len(sent))]
        self.sent += sent
        self.waiting |= dict(zip(names, sent, strict=True))
        return names

    def pull_messages(self, names: list[str]) -> list[Message]:
        replies = []
        for name in names:
            asked = self.waiting.pop(name, None)
            if asked is None:
                continue
            node, kind = asked.metadata.dst_node_id, asked.metadata.message_type
            arrived = Message(crossed(asked.content), node, kind)
            arrived.metadata.__dict__["_message_id"] = name
            reply = self.app(arrived, self.context(node))
            content = self.spoil(node - 100, kind, crossed(reply.content))
            if content is not None:
                replies.append(Message(content, reply_to=arrived))
        return replies


@pytest.fixture
def through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`through(module, data)` puts the module on a loopback federation and returns the grid."""

    for name, value in {"_run_id": 1, "_node_id": 1, "_task_id": 1}.items():  # as in a running ServerApp
        monkeypatch.setattr(TaskIdentity, name, value)

    def through(module: FederatedModule, data: Any, **settings: Any) -> Loopback:
        parts = Parts.of(module, data)
        grid = Loopback(lambda number: parts, data.clients, tmp_path / "states")
        module.engine = Flower(grid, **({"timeout": 5, "wait": 1.0} | settings))
        return grid

    return through


class TwoTrips(FederatedClient):
    """Two calls a round, a downlink for each client, a state, and a call with a codec of its own."""

    def count(self, inbox, state, data):
        state["seen"] = state.get("seen", 0) + 1
        return Payload(seen=state["seen"], noise=torch.randn(3), near=inbox["near"] + 0.1)

    def decline(self, inbox, state, data):
        return None if data.client == 1 else Payload(own=data.client)


class Talkative(FederatedModule):
    Client = TwoTrips
    server_state = ("heard",)

    def __init__(self, client, **settings):
        super().__init__(client, **settings)
        self.heard = []

    def round(self, cohort):
        replies = cohort.call(
            "count", lambda client: Payload(near=torch.arange(4.0) * client), codec=[Delta(), Uniform(6)]
        )
        replies += cohort.everyone.call("decline", Payload(), phase="setup")
        self.heard += [reply.flat() for reply in replies]


CASES = {
    "fedavg": lambda fed: FedAvg(fed.classifier(norm=True, dropout=0.3)),
    "codecs": lambda fed: FedAvg(
        fed.classifier(), codec=[Delta(), Clip(1.0), Gaussian(0.1), ErrorFeedback(TopK(0.3)), Uniform(5)]
    ),
    "scaffold": lambda fed: Scaffold(fed.classifier(dropout=0.3), targets=("received", "after_fit")),
    "talkative": lambda fed: Talkative(fed.classifier()),
}


@pytest.mark.parametrize("case", CASES)
def test_results_are_those_of_the_sequential_engine(fed, through, case: str) -> None:
    def data():
        return fed.federation(
            rounds=4,
            sampler=uniform(4, 3, seed=2),
            client_test=(fed.samples(), fed.federation().partitions[0]),
            dropouts=lambda client, round: (client, round) == (2, 1),
        )

    here = fed.fit(CASES[case](fed), data())
    there = CASES[case](fed)
    grid = through(there, data())
    fed.fit(there, data())
    assert fed.equal(fed.entries(here), fed.entries(there))
    assert there.ledger.rows == here.ledger.rows and there.ledger.profiles == here.ledger.profiles
    assert str(getattr(there, "heard", None)) == str(getattr(here, "heard", None))
    assert there.trainer.callback_metrics.keys() == here.trainer.callback_metrics.keys()
    for client in here.states.clients():  # the very same states, at the clients
        folder = StateFolder(grid.folder / there.engine.name / f"client-{client}")
        assert str(folder.load(there.states.version(client))) == str(here.states[client])
    assert there.states.clients() == here.states.clients()


def test_only_versions_of_states_are_at_the_server(fed, through) -> None:
    module = Scaffold(fed.classifier())
    grid = through(module, fed.federation())
    fed.fit(module, fed.federation())
    assert all(set(content) == {"version"} for content in module.states.state_dict().values())
    files = sorted(path.suffix for path in grid.folder.rglob("*") if path.is_file())
    assert files and set(files) == {".safetensors"}


def test_a_broadcast_is_one_record_for_all(fed, through) -> None:
    module = FedAvg(fed.classifier())
    grid = through(module, fed.federation(rounds=1))
    fed.fit(module, fed.federation(rounds=1))
    tasks = [message for message in grid.sent if message.metadata.message_type == "train"]
    assert len(tasks) == 4
    assert len({message.content[messages.BYTES].object_id for message in tasks}) == 1


def test_resuming_takes_the_states_of_the_checkpoint(fed, through, tmp_path: Path) -> None:
    def data():
        return fed.federation(rounds=6, sampler=uniform(4, 3, seed=2))

    whole = fed.fit(Scaffold(fed.classifier(dropout=0.3)), data())
    first = Scaffold(fed.classifier(dropout=0.3))
    grid = through(first, data())
    checkpoints = []

    def stop_after(trainer, module, *_):
        if trainer.global_step == 3:
            trainer.save_checkpoint(tmp_path / "three.ckpt")
            checkpoints.append(dict(module.states.saved))

    fed.fit(first, data(), callbacks=[Every(stop_after)], max_steps=5)  # two rounds past the checkpoint
    assert checkpoints and checkpoints[0] != {c: first.states.version(c) for c in first.states.clients()}
    again = Scaffold(fed.classifier(seed=5, dropout=0.3))
    again.engine = Flower(grid, timeout=5, wait=0.0)
    fed.trainer().fit(again, datamodule=data(), ckpt_path=tmp_path / "three.ckpt", weights_only=True)
    assert fed.equal(fed.entries(whole), fed.entries(again))
    kept = [len(list(folder.iterdir())) for folder in (grid.folder / again.engine.name).iterdir()]
    assert max(kept) <= 3  # the newest, the one before, that of the checkpoint


def test_a_state_that_is_gone_or_altered_is_named(fed, through, tmp_path: Path) -> None:
    module = Scaffold(fed.classifier())
    grid = through(module, fed.federation())

    def lose(trainer, module, *_):
        for path in (grid.folder / module.engine.name / "client-1").iterdir():
            path.unlink()

    with pytest.raises(ClientError, match=r"client 1, round 1: its state \w+ is not in .*newest checkpoint"):
        fed.fit(module, fed.federation(), callbacks=[Every(lose)])
    folder = StateFolder(tmp_path / "own")
    version = folder.save({"a": torch.ones(3)}, 0)
    path = tmp_path / "own" / f"{version}.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(ClientError, match="was altered"):
        folder.load(version)
    assert folder.save({}, 0) == "" and folder.load("") == {}


def test_checkpoints_do_not_move_between_here_and_the_clients(fed, through, tmp_path: Path) -> None:
    here, there = Scaffold(fed.classifier()), Scaffold(fed.classifier())
    through(there, fed.federation())
    for name, module in {"here": here, "there": there}.items():
        trainer = fed.trainer()
        trainer.fit(module, datamodule=fed.federation())
        trainer.save_checkpoint(tmp_path / name)
    other = Scaffold(fed.classifier())
    with pytest.raises(UserError, match="states: kept by the clients in the checkpoint"):
        fed.trainer().fit(other, datamodule=fed.federation(), ckpt_path=tmp_path / "there", weights_only=True)
    other = Scaffold(fed.classifier())
    through(other, fed.federation())
    with pytest.raises(UserError, match="kept by the clients here"):
        fed.trainer().fit(other, datamodule=fed.federation(), ckpt_path=tmp_path / "here", weights_only=True)
    with pytest.raises(UserError, match="stay at the clients"):
        RemoteStates().load_state_dict({0: {"control": {}}})


class Every:
    """A callback after every round."""

    def __new__(cls, function):
        from lightning.pytorch import Callback

        return type("Every", (Callback,), {"on_train_batch_end": staticmethod(function)})()


def without_client_2(fed, module):
    """The sequential run in which client 2 answers in round 0 only."""
    lost = fed.federation(dropouts=lambda client, round: client == 2 and round >= 1)
    return fed.fit(module, lost)


def spoiled(kind_of_fault: str, grid: Loopback):
    """From its second task on, client 2's replies are spoiled in one way."""
    tasks = []

    def spoil(client: int, kind: str, content: RecordDict) -> Any:
        if client != 2 or kind != "train":
            return content
        tasks.append(client)
        if len(tasks) == 1:
            return content
        if kind_of_fault == "silence":
            return None
        if kind_of_fault == "node error":
            return Error(5, "Node Unavailable")
        if kind_of_fault == "other client":
            content["federated"]["client"] = 3
        if kind_of_fault == "no record":
            return RecordDict({"parameters": ConfigRecord({"a": 1})})
        message = content["message"]["message"]
        if kind_of_fault == "cut":
            content["message"]["message"] = message[:-3]
        if kind_of_fault == "tampered":
            content["message"]["message"] = message[:-5] + bytes([message[-5] ^ 1]) + message[-4:]
        return content

    grid.spoil = spoil


FAULTS = {
    "silence": "no reply within",
    "node error": "Node Unavailable",
    "other client": "says it is client 3's",
    "no record": "none of this loop's",
    "cut": "truncated or altered",
    "tampered": "truncated or altered",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_lost_or_spoiled_reply_is_left_out_or_ends_the_run_by_policy(fed, through, fault, caplog) -> None:
    wanted = without_client_2(fed, Scaffold(fed.classifier()))
    module = Scaffold(fed.classifier(), on_bad_reply="exclude")
    spoiled(fault, through(module, fed.federation(), timeout=0.3))
    fed.fit(module, fed.federation())
    assert fed.equal(fed.entries(wanted), fed.entries(module))
    assert "client 2 is left out of round 1: " in caplog.text and FAULTS[fault] in caplog.text
    strict = Scaffold(fed.classifier())
    spoiled(fault, through(strict, fed.federation(), timeout=0.3))
    with pytest.raises(ClientError, match=f"client 2, round 1: .*{FAULTS[fault]}"):
        fed.fit(strict, fed.federation())


class Faulty(FederatedClient):
    def fit(self, inbox, state, data):
        reply = super().fit(inbox, state, data)
        if data.client != 2 or data.round == 0:
            return reply
        if self.fault == "NaN":
            return reply.plus(model={name: value * torch.nan for name, value in reply["model"].items()})
        if self.fault == "keys":
            return reply.plus(model={"net.9.weight": torch.ones(2)})
        if self.fault == "shapes":
            return reply.plus(model={name: value[:1] for name, value in reply["model"].items()})
        if self.fault == "crash":
            raise RuntimeError("the disk is full")
        raise ClientError("my battery is empty.")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("NaN", "NaN or infinity"),
        ("keys", "was not asked for"),
        ("shapes", r"is a .* of shape \(1, 5\), expected"),
        ("crash", "RuntimeError: the disk is full .*client 2, round 1"),
        ("battery", "my battery is empty"),
    ],
)
def test_what_a_bad_client_sends_is_named(fed, through, fault: str, words: str, caplog) -> None:
    def module(policy: str) -> FedAvg:
        client = Faulty(fed.classifier())
        client.fault = fault
        return FedAvg(client, on_bad_reply=policy)

    strict = module("raise")
    through(strict, fed.federation())
    with pytest.raises(ClientError, match=words):
        fed.fit(strict, fed.federation())
    lenient = module("exclude")
    through(lenient, fed.federation())
    fed.fit(lenient, fed.federation())
    assert fed.equal(fed.entries(lenient), fed.entries(without_client_2(fed, FedAvg(fed.classifier()))))


def test_a_message_that_is_damaged_on_its_way_down_is_the_clients_error(fed, through) -> None:
    module = FedAvg(fed.classifier())
    grid = through(module, fed.federation())
    push = grid.push_messages

    def damaged(sent: list[Message]) -> list[str]:
        for message in sent:
            if "message" in message.content and message.metadata.dst_node_id == 101:
                whole = message.content["message"]["message"]
                message.content["message"] = ConfigRecord({"message": whole[:-1]})
        return push(sent)

    grid.push_messages = damaged
    with pytest.raises(ClientError, match=r"client 1, round 0: .*truncated or altered"):
        fed.fit(module, fed.federation())


def test_a_mistake_that_all_clients_make_is_nobodys_fault(fed, through) -> None:
    class Broken(FederatedClient):
        def fit(self, inbox, state, data):
            return 1 / 0

    module = FedAvg(Broken(fed.classifier()), on_bad_reply="exclude")
    through(module, fed.federation())
    with pytest.raises(RuntimeError, match="all 4 clients failed, the first with: ZeroDivisionError"):
        fed.fit(module, fed.federation())


def test_clients_that_are_absent_or_run_something_else_are_left_out(fed, through, caplog) -> None:
    module = FedAvg(fed.classifier(), on_bad_reply="exclude")
    data = fed.federation()
    grid = through(module, data)
    usual = Parts.of(module, data)
    other = Parts.of(FedAvg(fed.classifier(), codec=Uniform(4)), data)
    grid.parts = lambda number: other if number == 3 else usual
    grid.nodes = {0, 1, 3}
    fed.fit(module, data)
    assert "client 2 is left out of round 0: no connected node is this client" in caplog.text
    assert (
        "client 3 is left out of round 0: its node runs another federation (codec: Chain([Uniform"
        in caplog.text
    )
    two = fed.federation(sampler=lambda number: [0, 1])
    assert fed.equal(fed.entries(module), fed.entries(fed.fit(FedAvg(fed.classifier()), two)))


def test_a_node_that_comes_later_takes_part(fed, through) -> None:
    module = FedAvg(fed.classifier(), on_bad_reply="exclude")
    grid = through(module, fed.federation())
    grid.nodes = {0, 1, 2}
    fed.fit(module, fed.federation(), callbacks=[Every(lambda *_: grid.nodes.add(3))])
    late = fed.federation(dropouts=lambda client, round: client == 3 and round == 0)
    assert fed.equal(fed.entries(module), fed.entries(fed.fit(FedAvg(fed.classifier()), late)))


def test_a_nodes_secret_changes_its_noise_alone(fed, through) -> None:
    def run(secret: str):
        module = FedAvg(fed.classifier(), codec=Gaussian(0.1))
        through(module, fed.federation()).secret = secret
        return fed.entries(fed.fit(module, fed.federation()))

    assert fed.equal(run("a"), run("a"))
    assert not fed.equal(run("a"), run("")) and not fed.equal(run("a"), run("b"))


def test_codecs_are_named_not_pickled() -> None:
    chain = Chain([Delta(), ErrorFeedback(TopK(0.2)), Uniform(3, only="^model/")])
    assert repr(messages.understand(messages.describe(chain))) == repr(chain)
    with pytest.raises(ClientError, match="not known here"):
        messages.understand('[{"codec": "os.system", "settings": {}}]')
    loose = Uniform(3)
    loose.hook = print
    with pytest.raises(UserError, match="cannot be named"):
        messages.describe(Chain([loose]))


def test_a_site_does_only_what_a_server_may_ask(fed, tmp_path: Path) -> None:
    def asked(**changes: Any) -> str:
        task = Task(1, 0, 0, "fit", Chain().encode(Payload()))
        about = {"run": "r", "version": "", "keep": "", "codec": "", "identity": json.dumps(parts.identity())}
        task = dataclasses.replace(task, **{k: v for k, v in changes.items() if k not in about})
        about |= {k: v for k, v in changes.items() if k in about}
        return site.run(messages.from_task(task, messages.carrier(task.message), **about))["federated"][
            "error"
        ]

    parts = Parts.of(FedAvg(fed.classifier()), fed.federation())
    site = Site(1, tmp_path, parts)
    assert asked() == ""
    assert "no method for a server" in asked(method="_copy")
    assert "this node is client 1" in asked(client=2)
    assert "cannot name a run" in asked(run="../x")
    assert "no version of a state" in asked(version="../x")
    assert "AttributeError" in asked(method="missing")


def test_more_than_one_server_process_is_refused(fed) -> None:
    module = FedAvg(fed.classifier())
    module.trainer = type("Trainer", (), {"world_size": 2})
    with pytest.raises(UserError, match="one server process"):
        Flower(None).attach(module)


def test_without_flower_the_message_says_how_to_install_it(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "flwr", None)
    with pytest.raises(UserError, match=r"pip install .*\.\[flower\]"):
        engines.make("flower")


def test_the_loop_does_not_import_flower() -> None:
    code = (
        "import sys, shared.federated.module, shared.federated.engines as e; e.make('sequential');"
        "assert not {'flwr', 'ray'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=REPO, check=True)


class Deployed(Loopback):
    """Nodes that have the app of a deployment."""

    def __init__(self, settings: dict[str, Any], folder: Path) -> None:
        super().__init__(lambda number: None, range(3), folder)
        self.settings, self.app = settings, flower_app.client

    def context(self, node: int) -> Context:
        own = {"partition-id": node - 100, "state-dir": str(self.folder / f"site-{node - 100}")}
        return Context(1, node, own, RecordDict(), self.settings)


def test_the_apps_of_a_deployment_run_the_whole_project(through, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "projects" / "fedtoy").mkdir(parents=True)
    for name in TOY:
        shutil.copy(REPO / name, tmp_path / "projects" / "fedtoy")
    monkeypatch.setattr(projects, "__path__", [*projects.__path__, str(tmp_path / "projects")])
    base = {"trainer": {"max_epochs": 1, "accelerator": "cpu", "devices": 1}, "wandb": {"mode": "disabled"}}
    content = base | {"algorithm": "scaffold", "runtime": {"keep_checkpoint": True}}
    config = flower_app.composed("fedtoy", json.dumps(content))
    run_experiment(lambda c: flower_app.built("fedtoy", c), config, tmp_path / "here", group="g", name="n")
    settings = {"paper": "fedtoy", "config": json.dumps(content), "run": "try-1", "timeout": 5.0, "wait": 1.0}
    settings["out"] = str(tmp_path / "there")
    grid = Deployed(settings, tmp_path / "sites")
    flower_app.serve(grid, Context(1, 0, {}, RecordDict(), settings))
    weights = [
        torch.load(tmp_path / place / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
        for place in ("here", "there")
    ]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert json.loads((tmp_path / "there" / "metrics.json").read_text())["val/acc"] > 0
    assert [len(list(grid.folder.glob(f"site-{i}/try-1/client-{i}/*"))) > 0 for i in range(3)] == [True] * 3
    with pytest.raises(UserError, match="on-bad-reply takes raise or exclude"):
        flower_app.serve(grid, Context(1, 0, {}, RecordDict(), settings | {"on-bad-reply": "ignore"}))


def test_a_node_must_know_which_client_it_is() -> None:
    with pytest.raises(UserError, match="partition-id None.*--node-config"):
        number_of(Context(1, 7, {}, RecordDict(), {}))


def test_the_simulation_gives_the_sequential_result(fed, tmp_path: Path) -> None:
    here, data = fed.shared_cohort()
    fed.fit(here, data)
    module, data = fed.shared_cohort()
    module.engine = engines.make("flower")
    fed.fit(module, data)
    assert fed.equal(fed.entries(here), fed.entries(module))
    assert module.ledger.rows == here.ledger.rows
    assert not __import__("ray").is_initialized()  # stopped with the fit


def test_a_run_that_fails_leaves_no_engine_running(fed) -> None:
    class Doomed:
        closed = False

        def run(self, tasks: Any, node: Any) -> Any:
            raise RuntimeError("no power")

        def close(self) -> None:
            self.closed = True

    module = FedAvg(fed.classifier(), engine=Doomed())
    with pytest.raises(RuntimeError, match="no power"):
        fed.fit(module, fed.federation())
    assert module.engine.closed
