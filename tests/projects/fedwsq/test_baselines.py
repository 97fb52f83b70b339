"""Each baseline against its formulas, its limiting cases, or plain torch."""

import copy
import logging

import pytest
import torch
from torch.nn import functional as F

from projects.fedwsq.baselines.fedhq import relative_error
from projects.fedwsq.baselines.losses import labels_of_part, not_true
from projects.fedwsq.config import METHODS
from shared.errors import UserError
from shared.federated.algorithms.fedavg import FedAvg
from shared.federated.algorithms.fedprox import FedProx
from shared.federated.local import LocalTraining

PLAIN = "quantizer.name=none"


def same(left, right, tolerance=0.0):
    assert left.keys() == right.keys()
    for name in left:
        torch.testing.assert_close(left[name], right[name], rtol=0, atol=tolerance)


def run(fed, *overrides, ws=False, **data):
    return fed.fit(fed.made(*overrides, ws=ws), fed.data(**data))


def test_limits_are_fedavg(fed):
    wanted = fed.entries(run(fed, PLAIN))
    same(fed.entries(run(fed, PLAIN, "method=fedprox", "settings.mu=0")), wanted)
    same(fed.entries(run(fed, PLAIN, "method=fedavgm", "settings.server_momentum=0")), wanted, 1e-6)
    still = ("settings.mu=0", "settings.acceleration=0")
    same(fed.entries(run(fed, PLAIN, "method=fedacg", *still)), wanted, 1e-6)
    same(fed.entries(run(fed, PLAIN, "method=fedntd", "settings.not_true=0")), wanted, 1e-6)
    same(fed.entries(run(fed, PLAIN, "method=fedlc", "settings.calibration=0")), wanted, 1e-5)
    other = fed.entries(run(fed, PLAIN, "method=fedprox", "settings.mu=1"))
    assert not torch.equal(other["net.head.weight"], wanted["net.head.weight"])


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_in_both_engines(fed, method, caplog):
    quantiser = ["quantizer.name=nf", "quantizer.bits=4"] if method == "fedhq" else [PLAIN]
    found = []
    for engine in ("sequential", "vectorized"):
        with caplog.at_level(logging.WARNING):
            module = run(fed, f"method={method}", *quantiser, f"federation.engine={engine}", rounds=2)
        found.append(fed.entries(module))
    assert "one after the other" not in caplog.text
    start = fed.entries(fed.made(f"method={method}", *quantiser, ws=False))
    for name in start:
        assert not torch.equal(found[0][name], start[name]), name
        far = (found[0][name] - found[1][name]).abs() > 1e-4
        assert far.float().mean() < 0.03, name  # fedhq: a value at a threshold may move


def test_fedacg_is_its_recursion(fed):
    """Round by round with FedProx from the point ahead."""
    lam, mu, data = 0.85, 0.5, fed.data(rounds=1)
    settings = (f"settings.mu={mu}", f"settings.acceleration={lam}", "optimizer.decay=1")  # of the server
    module = fed.made(PLAIN, "method=fedacg", *settings, ws=False)
    start = fed.entries(module)
    m = {name: torch.zeros_like(value) for name, value in start.items()}
    fed.fit(module, fed.data(rounds=2))
    w = start
    for number in range(2):
        ahead = {name: w[name] + lam * m[name] for name in w}
        inner = FedProx(
            fed.local(ws=False),
            mu=mu,
            weights=None,
            training=LocalTraining(max_epochs=2, gradient_clip_val=10.0),
            engine="sequential",
        )
        inner.load(ahead)
        data = fed.data(rounds=2, sampler=lambda r, number=number: [0, 1, 2, 3] if r == number else [])
        fed.fit(inner, data)
        mean = fed.entries(inner)
        m = {name: lam * m[name] + mean[name] - ahead[name] for name in w}
        w = {name: w[name] + m[name] for name in w}
    same(fed.entries(module), w, 1e-5)
    same(module.momentum, m, 1e-5)


def test_feddyn_first_round_is_a_proximal_one(fed):
    """All g_i and h are zero then."""
    from projects.fedwsq.baselines.feddyn import DynClient

    module = fed.made(PLAIN, "method=feddyn", "settings.alpha=0.5", ws=False)
    start = fed.entries(module)
    fed.fit(module, fed.data(rounds=1))
    first = fed.entries(module)
    plain = run(fed, PLAIN, "method=fedprox", "settings.mu=0.5", rounds=1)  # g_i is 0: a prox round
    mean = fed.entries(plain)
    for name, value in first.items():  # h = -alpha (mean - start), so W = mean + (mean - start)
        torch.testing.assert_close(value, 2 * mean[name] - start[name], rtol=0, atol=1e-5)
    states = [module.states[client]["linear"] for client in range(4)]
    name = "net.head.weight"
    moved = sum(state[name] for state in states) / 4
    torch.testing.assert_close(moved, -0.5 * (mean[name] - start[name]), rtol=0, atol=1e-5)
    client = DynClient(fed.local(ws=False))
    client.alpha = 0.5
    grads = {name: torch.ones(2)}
    inbox = {"model": {name: torch.zeros(2)}}
    got = client.gradient(grads, {name: torch.full((2,), 4.0)}, inbox, {"linear": {name: torch.ones(2)}})
    assert torch.equal(got[name], torch.full((2,), 1 - 1 + 0.5 * 4))


def test_feddyn_is_its_recursion_with_some_of_the_clients(fed):
    """h and the model, round by round, from what the clients of the round ended with."""
    alpha, cohorts, name = 0.5, ([0, 1], [1, 2], [0, 3]), "net.head.weight"
    module = fed.made(PLAIN, "method=feddyn", f"settings.alpha={alpha}", ws=False)
    w = fed.entries(module)[name]
    h, ended = torch.zeros_like(w), []
    plain = module.client.result

    def spy(model, state, data, report):
        ended.append(model.state_dict()[name].clone())
        return plain(model, state, data, report)

    module.client.result = spy
    fed.fit(module, fed.data(rounds=3, sampler=lambda r: cohorts[r]))
    linear = {client: torch.zeros_like(w) for client in range(4)}
    for number, cohort in enumerate(cohorts):
        own = ended[2 * number : 2 * number + 2]
        for client, value in zip(cohort, own, strict=True):
            linear[client] = linear[client] - alpha * (value - w)
        mean = sum(own) / 2
        h = h - alpha / 4 * sum(value - w for value in own)
        w = mean - h / alpha
    torch.testing.assert_close(fed.entries(module)[name], w, rtol=0, atol=1e-5)
    torch.testing.assert_close(module.linear[name], h, rtol=0, atol=1e-5)
    for client, value in linear.items():
        torch.testing.assert_close(module.states[client]["linear"][name], value, rtol=0, atol=1e-5)


def test_the_weights_of_fedhq(fed):
    """Weights 1 / (1 + q_i), from updates that the test quantises itself."""
    module = fed.made("method=fedhq", "quantizer.name=uniform", "quantizer.bits=2", ws=False)
    start, captured = fed.entries(module), []
    plain = module.client.result

    def spy(model, state, data, report):
        captured.append(copy.deepcopy(model.state_dict()))
        return plain(model, state, data, report)

    module.client.result = spy
    fed.fit(module, fed.data(rounds=1))
    names = ["net.body.conv2.weight", "net.body.conv3.weight"]
    weights, restored = [], []
    for own in captured:
        quantised, errors = {}, []
        for name in names:
            d = own[name] - start[name]
            levels = torch.linspace(-1, 1, 4) * d.abs().max()
            quantised[name] = levels[(d[..., None] - levels).abs().argmin(-1)]
            errors.append(float((quantised[name] - d).square().sum() / d.square().sum()))
        weights.append(1 / (1 + max(errors)))
        restored.append(quantised)
    assert max(weights) - min(weights) > 1e-3
    for name in names:
        mean = sum(a * q[name] for a, q in zip(weights, restored, strict=True)) / sum(weights)
        torch.testing.assert_close(fed.entries(module)[name], start[name] + mean, rtol=0, atol=1e-5)
    head = sum(a * own["net.head.bias"] for a, own in zip(weights, captured, strict=True)) / sum(weights)
    torch.testing.assert_close(fed.entries(module)["net.head.bias"], head, rtol=0, atol=1e-6)
    sent = module.ledger.by("name", direction="up")
    assert sent["codes/net.body.conv3.weight/codes"] == 4 * 540 * 2 // 8
    assert "model/net.body.conv3.weight" not in sent


def test_relative_error():
    d = torch.tensor([3.0, 4.0])
    assert relative_error(d, torch.zeros(2)) == 1 and relative_error(d, d) == 0
    assert relative_error(torch.zeros(2), torch.zeros(2)) == 0
    assert relative_error(torch.zeros(2), torch.ones(2)) == 1


def test_not_true_distillation_is_a_divergence_over_wrong_classes():
    own, other = torch.randn(5, 4), torch.randn(5, 4)
    labels = torch.tensor([0, 3, 1, 2, 3])
    wanted = 0.0
    for x, t, y in zip(own, other, labels, strict=True):
        keep = [c for c in range(4) if c != y]
        p, q = (t[keep] / 2).softmax(0), (x[keep] / 2).softmax(0)
        wanted += 4 * float((p * (p / q).log()).sum()) / 5
    assert float(not_true(own, other, labels, 2.0)) == pytest.approx(wanted, rel=1e-5)
    assert float(not_true(own, own, labels, 1.0)) == pytest.approx(0, abs=1e-7)
    shifted = own.clone()
    shifted[torch.arange(5), labels] += 9  # the right class does not matter
    torch.testing.assert_close(not_true(shifted, other, labels, 1.0), not_true(own, other, labels, 1.0))


def test_fedlc_shifts_logits_by_the_clients_counts(fed):
    """One step of one client, written out."""
    module = fed.made(
        PLAIN,
        "method=fedlc",
        "settings.calibration=0.7",
        "federation.local_epochs=1",
        ws=False,
    )
    data = fed.data((12,), rounds=1, batch_size=12)
    start = copy.deepcopy(module.model)
    fed.fit(module, data)
    images, labels = fed.images(12).tensors
    labels_of_client = labels_of_part(data.client(0, 0).train)
    assert sorted(labels_of_client.tolist()) == sorted(labels.tolist())
    margins = 0.7 * torch.bincount(labels, minlength=3).clamp_min(1e-8) ** -0.25
    loss = F.cross_entropy(start(images) - margins, labels)
    (gradient,) = torch.autograd.grad(loss, [start.net.head.bias])
    got = fed.entries(module)["net.head.bias"]
    bias = start.net.head.bias.detach()
    torch.testing.assert_close(got, bias - 0.1 * (gradient + 1e-3 * bias), rtol=0, atol=2e-6)


def test_quantised_baselines_send_what_they_say(fed):
    for name, bits, extra in (("uniform", 1, 4), ("nf", 2, 4), ("fp", 4, 4), ("qsgd", 4, 4)):
        module = run(fed, f"quantizer.name={name}", f"quantizer.bits={bits}", rounds=1)
        size = module.ledger.by("name", direction="up")["model/net.body.conv3.weight"]
        width = bits + 1 if name == "qsgd" else bits
        assert size == 4 * (-(-540 * width // 8) + extra)
        assert isinstance(module, FedAvg)


def test_what_does_not_go_together_is_explained(fed):
    with pytest.raises(UserError, match="method takes .*found 'fedavgg'. Did you mean 'fedavg"):
        fed.made("method=fedavgg")
    with pytest.raises(UserError, match="quantizer.name takes .*found 'danuk'. Did you mean 'danuq'"):
        fed.made("quantizer.name=danuk")
    with pytest.raises(UserError, match="found method=fedprox"):
        fed.made("method=fedprox")
    with pytest.raises(UserError, match="set quantizer.name"):
        fed.made("method=fedhq", PLAIN)
