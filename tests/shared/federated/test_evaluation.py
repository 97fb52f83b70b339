"""Evaluation pools sufficient statistics, reports both means, and covers every target."""

import pytest
import torch

from shared.federated import partition, sampling
from shared.federated.algorithms.fedavg import FedAvg
from shared.federated.client import FederatedClient
from shared.federated.data import Batches, WithFields
from shared.federated.evaluation import pool, run_validation
from shared.federated.payload import Payload, Reply


def accuracy(model, tensors):
    with torch.no_grad():
        return (model(tensors[0]).argmax(1) == tensors[1]).float().mean().item()


def test_unequal_batches_are_pooled_exactly_and_nothing_is_left(fed):
    model = fed.classifier(norm=True, dropout=0.5)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.net[3].eval()
    data = fed.samples(50)
    sums, weights = run_validation(model, Batches(data, 16))
    assert weights["val/acc"] == 50
    assert model.training and not model.net[3].training and "log" not in vars(model)
    assert fed.equal(dict(model.state_dict()), before)
    assert sums["val/acc"] / 50 == pytest.approx(accuracy(model.eval(), data.tensors))


def test_both_means_are_reported():
    replies = [
        Reply(0, Payload(sums={"acc": 9.0}, weights={"acc": 10.0})),
        Reply(1, Payload(sums={"acc": 10.0}, weights={"acc": 90.0})),
    ]
    found = pool(replies)
    assert found["acc"] == pytest.approx(0.19) and found["acc/clients"] == pytest.approx((0.9 + 1 / 9) / 2)
    assert pool([]) == {}


def test_targets_are_what_they_say(fed):
    test = fed.samples(96)
    tests = fed.federation((30, 20, 10, 36)).partition
    data = fed.federation(
        rounds=2,
        client_test=(test, tests),
        held_out=[3],
        sampler=sampling.uniform(3, 2, seed=0),
        test=test,
    )
    module = FedAvg(fed.classifier(), targets=("received", "after_fit"))
    trainer = fed.trainer()
    trainer.fit(module, datamodule=data)
    got = trainer.callback_metrics
    x, y = test.tensors
    by_client = [accuracy(module.model, (x[own], y[own])) for own in tests.places]
    sizes = [30, 20, 10]
    pooled = sum(a * n for a, n in zip(by_client[:3], sizes, strict=True)) / 60
    assert got["received/val/acc"] == pytest.approx(pooled, abs=1e-6)
    assert got["received/val/acc/clients"] == pytest.approx(sum(by_client[:3]) / 3, abs=1e-6)
    assert got["new/received/val/acc"] == pytest.approx(by_client[3], abs=1e-6)
    assert got["val/acc"] == pytest.approx(accuracy(module.model, test.tensors), abs=1e-6)
    assert got["after_fit/val/acc"] != got["received/val/acc"]
    assert len(module.states) == 0
    assert 3 not in module.ledger.by("client", phase="fit") and module.ledger.total(phase="evaluate") > 0


def test_clients_without_test_data_are_left_out(fed):
    own = partition.Partition([[0, 1], [], [2], []])
    data = fed.federation(rounds=1, client_test=(fed.samples(96), own))
    module = FedAvg(fed.classifier(), targets=("received",))
    fed.fit(module, data)
    assert set(module.ledger.by("client", phase="evaluate", direction="up")) == {0, 2}


def test_batches_equal_the_data_loader(fed):
    data = fed.samples(21)
    order = Batches(data, 8, shuffle=torch.Generator().manual_seed(4)).order().tolist()
    loader = torch.utils.data.DataLoader(data, 8, sampler=order)
    listed = [data[i] for i in range(21)]
    for dataset in (data, torch.utils.data.Subset(data, range(21)), listed):
        ours = list(Batches(dataset, 8, shuffle=torch.Generator().manual_seed(4)))
        for left, right in zip(ours, loader, strict=True):
            assert torch.equal(left[0], right[0]) and torch.equal(left[1], right[1])
    assert [len(b[0]) for b in Batches(data, 8, drop_last=True)] == [8, 8] and len(Batches(data, 8)) == 3
    custom = list(Batches(data, 8, collate_fn=len))
    assert custom == [8, 8, 5]


def test_fields_are_joined_by_place(fed):
    joined = WithFields(fed.samples(6), features=torch.arange(6))
    assert len(joined) == 6 and joined[4][2] == 4
    with pytest.raises(Exception, match="'features' has 5 rows for 6"):
        WithFields(fed.samples(6), features=torch.arange(5))


def test_a_client_is_a_pure_function(fed):
    """Two calls with equal arguments give equal results: nothing of a call stays in the object."""
    client = FederatedClient(fed.classifier(norm=True, momentum=0.9))
    data, inbox = fed.federation().client(0, 0), Payload(model=client.down(client.module))
    first, second = (client.fit(inbox, {}, fed.federation().client(0, 0)) for _ in range(2))
    assert fed.equal(first["model"], second["model"]) and first["num_steps"] == 3
    assert torch.equal(inbox["model"]["net.0.weight"], client.module.net[0].weight)
    assert data.client == 0
