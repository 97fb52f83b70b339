"""The round: scales, aggregation, engines, resume, bad clients. Properties 9 to 11."""

from pathlib import Path

import pytest
import torch

from projects.fedwsq.danuq import quantised_names, uplink_bits
from projects.fedwsq.levels import danuq_table, nearest
from projects.fedwsq.measures import uplink
from projects.fedwsq.module import FedWSQ, WSQClient, rate_exponent
from shared.errors import UserError
from shared.federated import sampling
from shared.federated.algorithms.fedavg import FedAvg
from shared.federated.data import Batches
from shared.federated.errors import ClientError
from shared.federated.local import LocalTraining

NAMES = ["net.body.conv2.weight", "net.body.conv3.weight"]


def trained_alone(fed, client, federation, theta, lr=0.1, round=0, decay=0.998):
    """One client's local training, in plain torch."""
    module = fed.local()
    module.load_state_dict(theta)
    own = federation.client(client, round)
    batches = Batches(own.train, 4, shuffle=own.generator("batches"))
    for epoch in range(2):
        for images, labels in batches:
            loss = torch.nn.functional.cross_entropy(module(images), labels)
            gradients = torch.autograd.grad(loss, list(module.parameters()))
            norm = torch.stack([g.norm() for g in gradients]).norm()
            with torch.no_grad():
                for p, g in zip(module.parameters(), gradients, strict=True):
                    p -= lr * decay**epoch * (g * min(1.0, 10 / float(norm)) + 1e-3 * p)
    return module.state_dict()


def test_a_round_is_the_algorithm_written_out(fed):
    """W_g + mean_i s_g Q((W_i - W_g) / s_g), the rest averaged; s_g moves by the mean deviation."""
    module, federation = fed.wsq(bits=2, initial_scale=0.01), fed.data((12, 8, 12), rounds=1)
    before = fed.entries(module)
    assert quantised_names(module.model) == NAMES
    fed.fit(module, federation)
    locals_ = [trained_alone(fed, client, federation, before) for client in range(3)]
    table = danuq_table(2)
    for name, value in fed.entries(module).items():
        updates = [own[name] - before[name] for own in locals_]
        if name in NAMES:
            wanted = [0.01 * table[nearest(update / 0.01, table).long()] for update in updates]
            scale = 0.9 * 0.01 + 0.1 * sum(float(update.std()) for update in updates) / 3
            assert float(module.scales[name]) == pytest.approx(scale, rel=1e-4)
        else:
            wanted = updates
        mean = before[name] + sum(wanted) / 3  # clients of 12, 8 and 12 samples count alike
        close = (value - mean).abs() < 1e-5
        assert close.float().mean() > 0.98, name  # a value on a threshold may fall to either side


def test_without_quantiser_and_standardisation_a_round_is_the_uniform_mean_bit_for_bit(fed):
    class Identity(FedWSQ):
        def __init__(self, client, **settings):
            super().__init__(client, **settings)
            self.up.codecs.clear()

    locals_ = []

    class Watching(WSQClient):
        def result(self, model, state, data, report):
            locals_.append({name: value.clone() for name, value in model.state_dict().items()})
            return super().result(model, state, data, report)

    training = LocalTraining(max_epochs=2, gradient_clip_val=10.0)
    client = Watching(fed.local(ws=False), training=training)
    data = fed.data((12, 8, 16), rounds=1)
    ours = fed.entries(fed.fit(Identity(client, engine="sequential"), data))
    plain = FedAvg(fed.local(ws=False), training=training, weights=None, engine="sequential")
    theirs = fed.entries(fed.fit(plain, fed.data((12, 8, 16), rounds=1)))
    assert ours.keys() == theirs.keys() and len(locals_) == 3
    for name, value in ours.items():
        mean = sum(own[name].double() for own in locals_) / 3
        assert torch.equal(value, mean.float()) and torch.equal(value, theirs[name]), name


def test_the_recursion_of_the_scales(fed):
    module = fed.wsq(beta=0.1, initial_scale=1e-3)
    module.log = lambda *args, **kwargs: None
    for _ in range(25):
        module.follow({name: torch.tensor(0.05) for name in NAMES})
    for value in module.scales.values():
        assert float(value) == pytest.approx(0.05 + (1e-3 - 0.05) * 0.9**25, rel=1e-5)
    warm = fed.wsq(warm_start=True)
    warm.log = module.log
    warm.follow({name: torch.tensor(0.05) for name in NAMES}, first=True)
    assert {float(value) for value in warm.scales.values()} == {float(torch.tensor(0.05))}
    warm.follow({name: torch.tensor(0.15) for name in NAMES})
    assert float(warm.scales[NAMES[0]]) == pytest.approx(0.06)


def test_scales_are_server_state_and_no_parameters(fed):
    module = fed.fit(fed.wsq(), fed.data(rounds=2))
    assert set(module.scales) == set(NAMES) and all(v != 1e-3 for v in module.scales.values())
    assert not any("scale" in name for name in module.state_dict())


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_the_ledger_counts_what_the_formula_says(fed, bits):
    module = fed.fit(fed.wsq(bits=bits), fed.data(rounds=2))
    sent = module.ledger.by("name", direction="up", phase="fit")
    ours = {name: size for name, size in sent.items() if name.startswith(("model/", "scales/"))}
    messages = 2 * 4
    packed = sum(-(-bits * n // 8) for n in (216, 540))
    rest = sum(v.numel() for n, v in module.model.state_dict().items() if n not in NAMES)
    assert sum(ours.values()) == messages * (packed + 4 * 2 + 4 * rest)
    assert sum(ours.values()) * 8 / messages == pytest.approx(uplink_bits(module.model, bits), abs=16)
    found = uplink(module.ledger, module.model)
    assert found["uplink/ratio_quantised"] == pytest.approx(4 * 756 / (packed + 8))
    assert found["uplink/ratio"] == pytest.approx((4 * (756 + rest)) / (packed + 8 + 4 * rest))
    assert found["uplink/bits"] == pytest.approx(32 / found["uplink/ratio"])
    assert found["uplink/kb"] > sum(ours.values()) / messages / 1000  # with framing and counts
    down = module.ledger.by("name", direction="down")
    assert down[f"model/{NAMES[0]}"] == messages * 4 * 216  # downlinks stay whole


@pytest.mark.parametrize("allocation", ["fixed", "dynamic"])
def test_mixed_allocations_travel_with_their_own_bits(fed, allocation):
    module = fed.fit(fed.wsq(allocation=allocation, seed=3), fed.data((8,) * 8, rounds=4))
    used = {
        client: {
            module.ledger.total(round=r, direction="up", client=client, name=f"model/{NAMES[0]}")
            for r in range(4)
        }
        for client in range(8)
    }
    sizes = {27 * bits for bits in (1, 2, 4)}
    assert set().union(*used.values()) == sizes
    assert all(len(own) == 1 for own in used.values()) == (allocation == "fixed")


def test_vectorized_gives_the_sequential_result(fed):
    """Up to values that rounding moves over a threshold."""
    results = []
    for engine in ("sequential", "vectorized"):
        module = fed.wsq(bits=4, allocation="fixed", initial_scale=0.01, engine=engine)
        results.append(fed.fit(module, fed.data((12, 12, 8, 12), rounds=2)))
    left, right = map(fed.entries, results)
    for name in left:
        moved = (left[name] - right[name]).abs() > 1e-4
        assert moved.float().mean() < 0.02, name
    for name in NAMES:
        assert float(results[0].scales[name]) == pytest.approx(float(results[1].scales[name]), rel=1e-3)
    for direction in ("up", "down"):
        totals = {r.ledger.total(direction=direction, header=False) for r in results}
        assert len(totals) == 1
    assert not results[1].engine.reasons  # nothing fell back to one after the other


def test_a_diverged_client_is_named(fed):
    class Broken(WSQClient):
        def fit(self, inbox, state, data):
            reply = super().fit(inbox, state, data)
            if data.client == 1:
                return reply.plus(scales={n: torch.tensor(float("nan")) for n in reply["scales"]})
            return reply

    with pytest.raises(ClientError, match=r"client 1, round 0: 'scales/net.body.conv2.weight' holds NaN"):
        fed.fit(FedWSQ(Broken(fed.local()), engine="sequential"), fed.data())
    diverging = fed.wsq()
    diverging.model.lr = float("inf")
    diverging.client._template.lr = float("inf")
    with pytest.raises(ClientError, match="holds NaN or infinity"):
        fed.fit(diverging, fed.data())


def test_a_reply_without_or_with_foreign_scales_is_named(fed):
    class Odd(WSQClient):
        def fit(self, inbox, state, data):
            reply = super().fit(inbox, state, data)
            return reply.plus(scales={"net.body.conv9.weight": torch.tensor(1.0)})

    with pytest.raises(ClientError, match="'scales/net.body.conv9.weight' was not asked for"):
        fed.fit(FedWSQ(Odd(fed.local()), engine="sequential"), fed.data())


def test_mistakes_are_explained(fed):
    with pytest.raises(UserError, match="bits; quantizer.bits is 3"):
        fed.wsq(bits=3)
    with pytest.raises(UserError, match=r"beta lies in \(0, 1\]"):
        fed.wsq(beta=0)
    with pytest.raises(UserError, match="allocation takes none, fixed, dynamic"):
        fed.wsq(allocation="fba")
    linear = fed.local()
    linear.net.body = torch.nn.Flatten()
    with pytest.raises(UserError, match="no convolution beside its first"):
        FedWSQ(linear)


def test_the_exponent_of_the_rate():
    assert [rate_exponent(t, 1000) for t in (0, 1, 999)] == [0, 1, 999]
    assert [rate_exponent(t, 100) for t in (0, 1, 99)] == [0, 10, 990]
    assert [rate_exponent(t, 2000) for t in (0, 1, 2, 1999)] == [0, 0, 1, 999]
    assert rate_exponent(5, 60) == 80  # 1000 // 60 = 16 a round


def test_rates_fall_by_round_and_by_local_epoch(fed):
    rates = []

    class Watching(WSQClient):
        def result(self, model, state, data, report):
            rates.append((report.lr, report.lr_sum))
            return super().result(model, state, data, report)

    training = LocalTraining(max_epochs=2)
    module = FedWSQ(
        Watching(fed.local(decay=0.5), training=training),
        engine="sequential",
        lr_schedule=lambda number: 0.5 ** rate_exponent(number, 1000),
    )
    fed.fit(module, fed.data((8,), rounds=2))  # two batches an epoch
    assert rates == [pytest.approx((0.05, 0.3)), pytest.approx((0.025, 0.15))]


def test_learning_beats_chance_by_far(fed):
    federation = fed.data((20,) * 6, rounds=12, sampler=sampling.uniform(6, 3, seed=0))
    module = fed.wsq(bits=4, initial_scale=1e-2)
    trainer = fed.trainer()
    trainer.fit(module, datamodule=federation)
    assert float(trainer.callback_metrics["val/accuracy"]) > 0.7  # chance is 0.33


def config(folder: Path, *overrides: str):
    from projects.fedwsq.config import Config
    from shared.training.config import compose

    layer = {
        "trainer": {"accelerator": "cpu", "devices": 1},
        "wandb": {"mode": "disabled"},
        "network": {"widths": [4, 6, 8], "strides": [1, 2, 1]},
        "federation": {
            "dataset": "digits",
            "partition": "balanced_dirichlet",
            "alpha": 0.3,
            "train_images": 120,
            "clients": 6,
            "per_round": 3,
            "rounds": 4,
            "batch_size": 10,
            "local_epochs": 1,
            "engine": "vectorized",
        },
        "quantizer": {"allocation": "fixed", "initial_scale": 0.01},
        "hessian_images": 16,
    }
    return compose(Config, layer, overrides=list(overrides))


def test_resumed_equals_uninterrupted(tmp_path):
    from projects.fedwsq import build
    from shared.training.experiment import Interrupted, run_experiment

    whole = run_experiment(build, config(tmp_path), tmp_path / "whole", group="g", name="n")
    asked = iter([False] * 1 + [True])
    with pytest.raises(Interrupted):
        run_experiment(
            build, config(tmp_path), tmp_path / "parts", group="g", name="n", stop=lambda: next(asked)
        )
    torch.rand(3)
    assert run_experiment(build, config(tmp_path), tmp_path / "parts", group="g", name="n") == whole
    assert {"last10/accuracy", "uplink/ratio", "hessian/top", "mb_up", "scales/ratio"} <= set(whole)
    assert whole["hessian/top"] != 0 and whole["uplink/ratio"] > 1
