"""Baselines and whole runs: FedHM's round, engines, resuming, what a config refuses."""

from pathlib import Path

import pytest
import torch

from projects.fedmud import build, requirements
from projects.fedmud.config import Config
from projects.fedmud.experiments import server
from projects.fedmud.fedhm import FedHM
from projects.fedmud.fedlmt import LowRank
from projects.fedmud.layers import decompose, restart, trained_values
from shared.data.images import load_images
from shared.errors import UserError
from shared.federated.algorithms.fedavg import FedAvg
from shared.federated.classifier import ImageClassifier
from shared.federated.sampling import predrawn
from shared.training.config import compose
from shared.training.experiment import Interrupted, run_experiment

METHODS = [
    "method.name=fedavg",
    "method.name=fedlmt",
    "method.name=fedpara",
    "method.name=fedhm",
    "method.name=fedmud method.kind=mat method.pattern=ab",
    "method.name=fedmud method.kind=kron method.pattern=ab",
    "method.name=fedmud method.kind=mat method.pattern=fab",
    "method.name=fedmud method.kind=mat method.pattern=fab+cfd",
    "method.name=fedmud method.kind=kron method.pattern=fab+cfd method.reset_every=2",
]


def config(*overrides, rounds=4):
    layer = {
        "trainer": {"accelerator": "cpu", "devices": 1},
        "wandb": {"mode": "disabled"},
        "network": "mlp",
        "lr": 0.1,
        "method": {"ratio": 0.2485, "magnitude": 0.3},
        "federation": {
            "dataset": "digits",
            "clients": 8,
            "per_round": 3,
            "rounds": rounds,
            "partition": "labeldir",
            "local_epochs": 1,
            "batch_size": 16,
            "targets": [0.3],
            "engine": "sequential",
        },
    }
    return compose(Config, layer, overrides=[part for text in overrides for part in text.split()])


def run(folder: Path, *overrides, **settings):
    return run_experiment(build, config(*overrides, **settings), folder, group="g", name="n")


@pytest.mark.parametrize("method", METHODS)
def test_a_run_of_every_method(method, tmp_path):
    metrics = run(tmp_path, method, rounds=6)
    assert metrics["best/accuracy"] >= metrics["last/accuracy"] > 12
    assert metrics["best/accuracy"] > 20  # chance is 10
    share = 1.0 if "fedavg" in method else pytest.approx(0.2485, abs=0.004)
    assert metrics["compression/ratio"] == share
    assert metrics["compression/total"] == 84_480
    replies = 6 * 3
    assert 4 * metrics["compression/trained"] * replies < metrics["bytes_up"]
    assert metrics["bytes_up"] < 4 * metrics["compression/trained"] * replies * 1.03  # headers
    assert metrics["rounds_to_30"] <= 6
    if "fedmud" in method:
        exact = "fab" in method
        assert (metrics["aggregation_error"] < 1e-5) == exact


@pytest.mark.parametrize("method", METHODS)
def test_batched_clients_train_as_one_after_the_other(method):
    """The vectorized engine, with clients that were away in between."""
    found = {}
    for engine in ("sequential", "vectorized"):
        experiment = build(config(method, f"federation.engine={engine}"))
        experiment.datamodule.sampler = predrawn([[0, 1, 2], [3, 4, 5], [0, 4, 6], [1, 6, 7]])
        from lightning.pytorch import Trainer

        Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        ).fit(experiment.module, datamodule=experiment.datamodule)
        found[engine] = experiment.module
    one, other = found.values()
    for name, value in one.model.state_dict().items():
        torch.testing.assert_close(other.model.state_dict()[name], value, rtol=2e-4, atol=2e-5, msg=name)
    assert one.ledger.by("name") == other.ledger.by("name")
    assert one.states.clients() == other.states.clients()


def test_batched_convolutions_with_normalisation(fed):
    found = []
    for engine in ("sequential", "vectorized"):
        module = fed.mud("kron", "fab+cfd", engine=engine)
        fed.fit(module, fed.data(rounds=4, sampler=predrawn([[0, 1, 2], [1, 3], [0, 3], [2, 1, 0]])))
        found.append(module)
    for name, value in found[0].model.state_dict().items():
        torch.testing.assert_close(found[1].model.state_dict()[name], value, rtol=1e-3, atol=1e-4, msg=name)
    assert found[0].merges == found[1].merges == 3


@pytest.mark.parametrize("method", [METHODS[3], METHODS[8]])
def test_resumed_equals_uninterrupted(method, tmp_path):
    whole = run(tmp_path / "whole", method)
    asked = iter([False] * 2 + [True])
    with pytest.raises(Interrupted):
        run_experiment(
            build, config(method), tmp_path / "parts", group="g", name="n", stop=lambda: next(asked)
        )
    assert run(tmp_path / "parts", method) == whole


def test_fedhm_averages_products(fed):
    """One round: the new weight is the mean of L R over clients; what was sent is the truncated SVD."""
    dense = ImageClassifier(fed.network(), lr=0.1)
    factored = decompose(fed.network(), LowRank.of_ratio, 0.5, base=False)
    restart(factored, 0)
    module = FedHM(ImageClassifier(factored, lr=0.1), dense=dense)
    replies = []
    restored = module.multiplied
    module.multiplied = lambda entries: replies.append(dict(entries)) or restored(entries)
    rank = module.forms["net.3"].product.rank
    before = dense.net[3].weight.detach().clone().view(18, 12)
    sent = module.theta()
    u, s, vt = torch.linalg.svd(before)
    best = (u[:, :rank] * s[:rank]) @ vt[:rank]
    torch.testing.assert_close(sent["net.3.left"] @ sent["net.3.right"], best, rtol=1e-4, atol=1e-5)
    fed.fit(module, fed.data(sizes=(16, 16, 16), rounds=1))
    mean = sum(reply["net.3.left"] @ reply["net.3.right"] for reply in replies) / 3
    torch.testing.assert_close(module.model.net[3].weight.view(18, 12), mean, rtol=1e-4, atol=1e-6)
    plain = sum(reply["net.3.left"] for reply in replies) / 3 @ (sum(r["net.3.right"] for r in replies) / 3)
    assert not torch.allclose(plain, mean, atol=1e-4)
    assert torch.linalg.matrix_rank(mean) > rank  # the server's weight outgrows what a client can hold


def test_fedlmt_is_fedavg_of_the_factors(fed):
    """One client: SGD on W = L R, by hand."""
    net = decompose(fed.network(), LowRank.of_ratio, 0.5, base=False)
    restart(net, 3)
    module = FedAvg(ImageClassifier(net, lr=0.1), weights="num_steps")
    plain = fed.network()
    factors = [net[i].left.detach().clone() for i in (3, 6)] + [net[i].right.detach().clone() for i in (3, 6)]
    factors = [value.requires_grad_() for value in factors]
    data = fed.data(sizes=(24,), rounds=1)
    fed.fit(module, data)
    dense = [p for name, p in plain.named_parameters() if name not in ("3.weight", "6.weight")]
    for x, y in data.client(0, 0).loader():
        weights = {
            "3.weight": (factors[0] @ factors[2]).view(6, 4, 3, 3),
            "6.weight": (factors[1] @ factors[3]).view(5, 6, 3, 3),
        }
        loss = torch.nn.functional.cross_entropy(torch.func.functional_call(plain, weights, x), y)
        with torch.no_grad():
            wanted = [*factors, *dense]
            for value, gradient in zip(wanted, torch.autograd.grad(loss, wanted), strict=True):
                value -= 0.1 * gradient
    trained = module.model.net
    for number, (layer, name) in enumerate(((3, "left"), (6, "left"), (3, "right"), (6, "right"))):
        torch.testing.assert_close(getattr(trained[layer], name), factors[number], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(trained[0].weight, plain[0].weight, rtol=1e-4, atol=1e-6)


def test_methods_of_a_seed_share_their_start_cohorts_and_batches():
    images = load_images("digits", True)
    modules = [server(config(method), images) for method in METHODS]
    first = {id(m): m.model.state_dict()["net.1.weight"] for m in modules}
    assert all(torch.equal(value, next(iter(first.values()))) for value in first.values())
    other = server(config("seed=1"), images).model.state_dict()["net.1.weight"]
    assert not torch.equal(other, next(iter(first.values())))
    drawn = [build(config(method)).datamodule.sampler(2) for method in METHODS[:3]]
    assert drawn[0] == drawn[1] == drawn[2]
    w = modules[0].model.state_dict()["net.3.weight"]
    assert torch.equal(modules[4].model.state_dict()["net.3.weight"], w)  # MUD's frozen W is the dense start
    with torch.no_grad():
        x = images.images[:5].float()
        assert torch.equal(modules[4].model(x), modules[0].model(x))
    assert trained_values(modules[0].model) == 84_480


def test_what_a_run_needs():
    assert requirements(config())[0].name == "digits"
    assert requirements(config("federation.dataset=svhn"))[0].name == "svhn"
    assert requirements(config("federation.dataset=cifar100"))[0].name == "cifar-100"


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("method.name=fedmudd", "method.name takes fedavg, .*fedmud; found 'fedmudd'"),
        ("task=train", "task takes training, approximation; found 'train'"),
        ("network=cnn", "takes images of 16 x 16 at least, found 8 x 8"),
        ("method.pattern=aad", "method.pattern takes ab, fab, fab.cfd; found 'aad'"),
        ("method.magnitude=-1", "magnitude must be positive"),
        ("method.law=gauss", "method.law takes uniform or normal"),
        ("method.ratio=0", r"method.ratio must lie in \(0, 1\]"),
        ("method.reset_every=0", "from 1 on, found 0"),
    ],
)
def test_bad_values_are_named(override, text):
    with pytest.raises(UserError, match=text):
        build(config(override))
