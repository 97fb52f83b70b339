"""Evaluation pools sufficient statistics, reports both means, and covers every target."""

import pytest
import torch

from shared.errors import UserError
from shared.federated import partition, sampling
from shared.federated.algorithms.fedavg import FedAvg
from shared.federated.client import FederatedClient
from shared.federated.data import Batches, FederatedData, WithFields
from shared.federated.evaluation import pool, run_validation
from shared.federated.payload import Payload, Reply
from shared.federated.streams import AccuracyMatrix, TaskStream


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
    tests = fed.federation((30, 20, 10, 36)).partitions[0]
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
    """Two calls with equal arguments give equal results: nothing of a call stays in object or message."""
    client = FederatedClient(fed.classifier(norm=True, momentum=0.9))
    start = {name: value.clone() for name, value in client.module.state_dict().items()}
    inbox = Payload(model={name: value.clone() for name, value in start.items()})
    results = []
    for _ in range(2):
        reply = client.fit(inbox, {}, fed.federation().client(0, 0))
        results.append({name: value.clone() for name, value in reply["model"].items()})
    assert reply["num_steps"] == 3 and fed.equal(*results) and not fed.equal(results[0], start)
    assert fed.equal(inbox["model"], start) and fed.equal(dict(client.module.state_dict()), start)


def test_tasks_have_data_of_their_own_and_fill_the_accuracy_matrix(fed):
    train, labels = fed.samples(90), fed.samples(90).tensors[1]
    of_class = [[torch.where(labels == c)[0][i::2].numpy() for i in range(2)] for c in range(3)]
    tasks = [partition.Partition(own) for own in of_class]
    seen = set()

    class Spy(fed.Classifier):
        def training_step(self, batch, batch_idx):
            seen.update(batch[1].tolist())
            return super().training_step(batch, batch_idx)

    class Stream(FedAvg):
        server_state = ("rows",)

        def __init__(self, client):
            super().__init__(client)
            self.rows = []

        def round(self, cohort):
            seen.clear()
            super().round(cohort)
            assert seen == {cohort.stage}
            if cohort.ends_stage:
                self.rows.append(self.evaluate_tasks(cohort, "val/acc"))

    data = FederatedData(
        train, tasks, rounds=6, batch_size=4, client_test=(train, tasks), stream=TaskStream(3, 2)
    )
    module = fed.fit(Stream(Spy(lr=0.5)), data)
    matrix = AccuracyMatrix(module.rows)
    assert [len(row) for row in module.rows] == [1, 2, 3]
    x = train.tensors[0]
    assert module.rows[-1] == pytest.approx(
        [accuracy(module.model, (x[labels == c], labels[labels == c])) for c in range(3)], abs=1e-6
    )
    assert module.rows[0] == [1.0] and matrix.forgetting > 0.3  # one class a task, nothing against forgetting
    with pytest.raises(UserError, match="same number of clients; found 2, 4"):
        FederatedData(train, tasks, rounds=1, client_test=(train, fed.federation().partitions[0]))
