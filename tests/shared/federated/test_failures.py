"""What clients, networks, samplers and users do wrong: named, or left out without a trace."""

import json
import struct

import pytest
import torch
from torch import nn

from shared.errors import UserError
from shared.federated import sampling, wire
from shared.federated.algorithms.fedavg import FedAvg
from shared.federated.algorithms.fednova import FedNova
from shared.federated.algorithms.fedprox import FedProx
from shared.federated.algorithms.moon import Moon
from shared.federated.algorithms.scaffold import Scaffold, ScaffoldClient
from shared.federated.client import FederatedClient
from shared.federated.errors import ClientError
from shared.federated.local import LocalTraining
from shared.federated.module import FederatedModule
from shared.federated.payload import Payload


class Broken(FederatedClient):
    """Client 1 sends something unusable."""

    def __init__(self, model, damage):
        super().__init__(model)
        self.damage = damage

    def fit(self, inbox, state, data):
        state["visits"] = state.get("visits", 0) + 1
        reply = super().fit(inbox, state, data)
        return reply if data.client != 1 else self.damage(reply)


def with_bias(make):
    return lambda reply: reply.plus(
        model={**reply["model"], "net.0.bias": make(reply["model"]["net.0.bias"])}
    )


def with_other_key(reply):
    model = dict(reply["model"])
    model["net.0.bais"] = model.pop("net.0.bias")
    return reply.plus(model=model)


BAD = {
    "nan": (with_bias(lambda b: b * float("nan")), r"'model/net.0.bias' holds NaN"),
    "infinite number": (lambda r: r.plus(lr=float("inf")), "'lr' holds NaN or infinity"),
    "key": (with_other_key, r"'model/net.0.bais' was not asked for. Did you mean 'net.0.bias'\?"),
    "shape": (with_bias(lambda b: torch.zeros(9)), r"tensor of shape \(9,\), expected .* shape \(8,\)"),
    "whole numbers": (with_bias(lambda b: b.long()), r"is a whole-number tensor.*expected a floating-point"),
    "number for a tensor": (with_bias(lambda b: 1.0), r"is a float, expected a floating-point tensor"),
    "no dtype": (with_bias(lambda b: b.to(torch.complex64)), "has dtype torch.complex64"),
    "group": (
        lambda r: Payload(weights=r["model"], num_samples=1),
        "'model' was expected.*holds weights",
    ),
    "tensor for a group": (
        lambda r: r.plus(model=torch.zeros(3)),
        "'model' was expected as a group",
    ),
    "no count": (
        lambda r: Payload(model=r["model"]),
        "'num_samples' was expected, but",
    ),
    "negative count": (lambda r: r.plus(num_samples=-5), "'num_samples' was expected as a number from 0 up"),
    "nan count": (lambda r: r.plus(num_samples=float("nan")), "'num_samples' holds NaN"),
    "count in words": (lambda r: r.plus(num_samples="24"), "'num_samples' was expected as a number"),
    "tensor for a count": (
        lambda r: r.plus(num_samples=torch.ones(2)),
        "'num_samples' was expected as a number",
    ),
    "metrics": (lambda r: r.plus(metrics=3.0), "'metrics' is no group"),
    "dict": (lambda r: r.entries, "fit returned a dict; expected a Payload"),
    "list": (lambda r: [r], "fit returned a list; expected a Payload"),
}


@pytest.mark.parametrize("damage", BAD)
def test_bad_replies_are_named_or_left_out(fed, damage, caplog):
    damage, reason = BAD[damage]
    with pytest.raises(ClientError, match=rf"client 1, round 0: .*{reason}"):
        fed.fit(FedAvg(Broken(fed.classifier(), damage)), fed.federation(rounds=1))
    module = FedAvg(Broken(fed.classifier(), damage), on_bad_reply="exclude")
    fed.fit(module, fed.federation(rounds=2))
    others = fed.federation(rounds=2, sampler=sampling.predrawn([[0, 2, 3]]))
    assert fed.equal(fed.entries(module), fed.entries(fed.fit(FedAvg(fed.classifier()), others)))
    assert "client 1 is left out of round 0" in caplog.text
    assert module.states.clients() == [0, 2, 3] and module.states[0]["visits"] == 2  # client 1 was put back


def test_metrics_may_be_undefined(fed):
    client = Broken(fed.classifier(), lambda r: r.plus(metrics={"auc": float("nan")}))
    fed.fit(FedAvg(client), fed.federation(rounds=1))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"net.0.bias": torch.zeros(9)}, r"'delta_control/net.0.bias' is .*\(9,\), expected .*\(8,\)"),
        ({"net.9": torch.zeros(8)}, "'delta_control/net.9' was not asked for"),
    ],
)
def test_controls_of_scaffold_are_checked_against_those_sent(fed, value, reason):
    class Wrong(ScaffoldClient):
        def fit(self, inbox, state, data):
            return super().fit(inbox, state, data).plus(delta_control=value)

    with pytest.raises(ClientError, match=reason):
        fed.fit(Scaffold(Wrong(fed.classifier())), fed.federation(rounds=1))


def reframed(text: bytes) -> bytes:
    """A frame with a right checksum around a header that says `text`."""
    body = struct.pack("<Q", len(text)) + text
    return wire.MAGIC + wire._checksum(body) + body


OTHER_PLAN = json.dumps({"meta": {"plan": [[7, "x"]]}})
DAMAGE = {
    "altered": lambda m: m[:-3] + b"abc",
    "truncated": lambda m: m[: len(m) // 2],
    "empty": lambda m: b"",
    "magic alone": lambda m: m[:8],
    "frame alone": lambda m: wire.MAGIC + wire._checksum(b""),
    "another magic": lambda m: b"PK" + m[2:],
    "no JSON": lambda m: reframed(b"{not json"),
    "no UTF-8": lambda m: reframed(b"\xff\xfe"),
    "a list": lambda m: reframed(b"[]"),
    "no metadata": lambda m: reframed(b"{}"),
    "length beyond the end": lambda m: reframed(b"{}")[:24] + struct.pack("<Q", 2**60),
    "another codec": lambda m: reframed(json.dumps({"__metadata__": {"about": OTHER_PLAN}}).encode()),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_messages_are_named_or_left_out(fed, damage):
    class Tampering:
        def run(self, tasks, node):
            for task in tasks:
                outcome = node.run(task)
                if task.client == 2 and outcome.message is not None:
                    outcome.message = DAMAGE[damage](outcome.message)
                yield outcome

    with pytest.raises(ClientError, match="client 2, round 0: "):
        fed.fit(FedAvg(fed.classifier(), engine=Tampering()), fed.federation(rounds=1))
    module = FedAvg(fed.classifier(), engine=Tampering(), on_bad_reply="exclude")
    fed.fit(module, fed.federation(rounds=1))
    others = fed.federation(rounds=1, sampler=sampling.predrawn([[0, 1, 3]]))
    assert fed.equal(fed.entries(module), fed.entries(fed.fit(FedAvg(fed.classifier()), others)))
    sent = module.ledger.by("name", direction="up", client=2)
    assert set(sent) <= {"(header)"}, "what cannot be read has no names"


def test_empty_clients_and_single_samples_are_explained(fed):
    with pytest.raises(ClientError, match="client 1, round 0: it has no training sample"):
        fed.fit(FedAvg(fed.classifier()), fed.federation(sizes=(8, 0, 8)))
    with pytest.raises(ClientError, match="client 1, round 0: a batch of one sample met batch normalisation"):
        fed.fit(FedAvg(fed.classifier(norm=True)), fed.federation(sizes=(8, 1, 8)))
    fed.fit(FedAvg(fed.classifier()), fed.federation(sizes=(8, 1, 8)))  # without BatchNorm: fine


def test_mistakes_are_explained(fed):
    class Calls(FederatedModule):
        def round(self, cohort):
            cohort.call("fti", Payload())

    with pytest.raises(UserError, match=r"no method 'fti'. Did you mean 'fit'\?"):
        fed.fit(Calls(fed.classifier()), fed.federation())
    with pytest.raises(UserError, match="found a Linear"):
        FedAvg(nn.Linear(1, 1))
    with pytest.raises(UserError, match="unknown engine 'sequental'.*sequential"):
        FedAvg(fed.classifier(), engine="sequental")
    with pytest.raises(UserError, match="unknown target"):
        FedAvg(fed.classifier(), targets=("global",))
    with pytest.raises(UserError, match="raise or exclude"):
        FedAvg(fed.classifier(), on_bad_reply="ignore")
    with pytest.raises(UserError, match="buffers takes"):
        FedAvg(fed.classifier(), buffers="averaged")
    with pytest.raises(UserError, match="give these to the FederatedClient itself"):
        FedAvg(FederatedClient(fed.classifier()), training=LocalTraining())
    with pytest.raises(UserError, match="a ProxClient"):
        FedProx(FederatedClient(fed.classifier()), mu=0.1)
    with pytest.raises(AttributeError, match="no_such"):
        Moon(fed.classifier(), head="no_such")
    module = FedAvg(fed.classifier())
    with pytest.raises(UserError, match="cannot load 'net.9'"):
        module.load({"net.9": torch.zeros(1)})


def test_errors_in_client_code_say_where(fed):
    class Buggy(FederatedClient):
        def fit(self, inbox, state, data):
            return 1 / (2 - data.client)

    with pytest.raises(ZeroDivisionError) as caught:
        fed.fit(FedAvg(Buggy(fed.classifier())), fed.federation(sampler=sampling.predrawn([[2]])))
    assert "in fit of client 2, round 0" in caught.value.__notes__


@pytest.mark.parametrize(
    ("cohort", "reason"),
    [
        ([0, 1, 1], "drew a client twice for round 0"),
        ([0, 4], r"that do not train: \[4\]; expected some of 0 to 3"),
        ([-1], r"that do not train: \[-1\]"),
        ([2, 3], r"that do not train: \[3\]"),
    ],
)
def test_wrong_cohorts_are_refused(fed, cohort, reason):
    data = fed.federation(sampler=sampling.predrawn([cohort]), held_out=[3])
    with pytest.raises(UserError, match=reason):
        fed.fit(FedAvg(fed.classifier()), data)


@pytest.mark.parametrize("algorithm", [Scaffold, FedNova])
@pytest.mark.parametrize("engine", ["sequential", "vectorized"])
def test_algorithms_that_count_on_sgd_say_so(fed, algorithm, engine):
    class Adam(fed.Classifier):
        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.01)

    with pytest.raises(UserError, match="SGD.*found Adam"):
        fed.fit(algorithm(Adam(), engine=engine), fed.federation(rounds=1))
