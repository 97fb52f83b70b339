"""FedMUD itself: merging, one W for all from seeds and factors alone, what is sent, resuming."""

import copy
import math

import pytest
import torch
from lightning.pytorch import Callback
from torch.nn import functional as F

from projects.fedmud.aad import KINDS, PATTERNS
from projects.fedmud.layers import decomposed_layers, merge, restart, trained_values
from projects.fedmud.module import FedMUD, MudClient, base_weights, trained_factors
from shared.errors import UserError
from shared.federated.algorithms.fedavg import FedAvg
from shared.federated.classifier import ImageClassifier
from shared.federated.local import LocalTraining
from shared.federated.payload import Payload, Reply
from shared.federated.sampling import predrawn

FORMS = [(kind, pattern) for kind in KINDS for pattern in PATTERNS]
COHORTS = [[0, 1], [0, 2], [1, 0], [0, 2], [0, 1], [3, 0], [2, 3], [3, 1]]  # 3 first appears in round 5


def entries(module):
    return {name: value.clone() for name, value in module.model.state_dict().items()}


def same(left, right):
    assert left.keys() == right.keys()
    return all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.parametrize(("kind", "pattern"), FORMS)
def test_merging_changes_no_output(fed, kind, pattern):
    module = fed.mud(kind, pattern)
    model = module.model.eval()
    x = fed.images(50)[:][0]
    with torch.no_grad():
        for _, layer in decomposed_layers(model):
            for name in layer.form.trained:
                getattr(layer, name).normal_(0, 0.3)
        before, weights = model(x), base_weights(copy.deepcopy(model))
        merge(model)
        restart(model, 5)
        assert (model(x) - before).abs().max() < 1e-5
        after = base_weights(copy.deepcopy(model))
        assert not same(after, weights)
        merge(model)  # nothing was trained in between
        restart(model, 6)
        assert same(base_weights(model), after)


class Synchronised(MudClient):
    """Replies with its W as training starts (beside what the method sends): what the tests compare."""

    def fit(self, inbox, state, data):
        model = self.model(inbox, state)
        self.synchronise(model, inbox, state)
        start = {name: value.clone() for name, value in model.state_dict().items()}
        report = self.train(model, inbox, state, data)
        base = {name: start[name] for name in base_weights(model)}
        frozen = {name: value for name, value in start.items() if "frozen" in name}
        return self.result(model, state, data, report).plus(seen={"base": base, "frozen": frozen})


class Watched(FedMUD):
    """Compares every participant with the server in every round."""

    Client = Synchronised

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.compared, self.messages = 0, []

    def message(self, client, push):
        message = super().message(client, push)
        self.messages.append((self.trainer.global_step, client, push, set(message.entries)))
        return message

    def note_aggregation_error(self, replies, mean):
        held = self.model.state_dict()
        for reply in replies:
            assert reply["seen"]["base"].keys() == base_weights(self.model).keys()
            for values in reply["seen"].values():
                for name, value in values.items():
                    assert torch.equal(value, held[name]), (reply.client, name)
                    self.compared += 1
        super().note_aggregation_error(replies, mean)


def watched(fed, kind, pattern, **settings):
    plain = fed.mud(kind, pattern)
    return Watched(plain.model, training=LocalTraining(max_epochs=2), **settings)


@pytest.mark.parametrize("reset_every", [1, 3])
@pytest.mark.parametrize(("kind", "pattern"), [("mat", "ab"), ("kron", "fab+cfd")])
def test_w_of_every_participant_is_the_servers(fed, kind, pattern, reset_every):
    """Bit for bit, also of those who were away or appear late, although W is not in the messages."""
    module = watched(fed, kind, pattern, reset_every=reset_every)
    start = base_weights(copy.deepcopy(module.model))
    module.worth_sending = lambda factors: 1000  # W itself is never the cheaper one
    fed.fit(module, fed.data(rounds=8, sampler=predrawn(COHORTS)))
    tensors = 2 + (4 if pattern == "fab+cfd" else 0)
    assert module.compared == 16 * tensors
    assert module.merges == 7 // reset_every
    assert not same(base_weights(module.model), start)
    assert not any("base" in sent for *_, sent in module.messages)
    assert any("missed" in sent for *_, sent in module.messages)
    assert module.ledger.total(direction="down", name="base") == 0


def test_who_was_away_too_long_gets_w(fed):
    module = watched(fed, "kron", "fab+cfd")
    module.worth_sending = lambda factors: 2
    fed.fit(module, fed.data(rounds=8, sampler=predrawn(COHORTS)))
    got = {(number, client): sent for number, client, _, sent in module.messages}
    assert module.compared == 16 * 6
    assert "missed" in got[3, 2] and "base" not in got[3, 2]  # took part in round 1: missed one merge
    assert "base" in got[5, 3] and "missed" not in got[5, 3]  # never took part: five merges
    assert not {"base", "missed"} & got[1, 0]  # took part in the round before: this round's push is all
    size = sum(value.nbytes for value in base_weights(module.model).values())
    senders = [place for place, sent in got.items() if "base" in sent]
    assert module.ledger.total(direction="down", name="base") == size * len(senders) > 0
    assert len(module.history) == 2


def test_merges_are_kept_while_they_cost_less_than_w(fed):
    module = fed.mud("mat", "ab")
    factors = trained_factors(module.model, module.theta())
    count = module.worth_sending(factors)
    each = sum(value.nbytes for value in factors.values()) + 8
    size = sum(value.nbytes for value in base_weights(module.model).values())
    assert count == max(1, math.ceil(size / each) - 1)
    assert count == 1 or count * each < size


def test_a_client_that_vanished_catches_up(fed):
    """Its state is as before the round in which it vanished; the server counts that round as missed."""
    module = watched(fed, "kron", "fab+cfd")
    module.worth_sending = lambda factors: 1000
    federation = fed.data(
        rounds=8, sampler=predrawn(COHORTS), dropouts=lambda client, number: (client, number) == (0, 2)
    )
    fed.fit(module, federation)
    assert module.compared == 15 * 6
    got = {(number, client): sent for number, client, _, sent in module.messages}
    assert "missed" in got[3, 0]


def test_a_client_that_kept_its_state_skips_what_it_has(fed):
    module = watched(fed, "mat", "ab")
    module.worth_sending = lambda factors: 1000
    federation = fed.data(
        rounds=8,
        sampler=predrawn(COHORTS),
        dropouts=lambda client, number: (client, number) == (0, 2),
        keep_dropout_state=True,
    )
    fed.fit(module, federation)
    assert module.compared == 15 * 2


def test_what_a_round_sends(fed):
    """Up and down 4 bytes for each trained value; beside them running statistics, seeds and counters."""
    module = fed.mud("kron", "fab+cfd")
    fed.fit(module, fed.data(rounds=3))  # everybody, every round: nothing is missed
    trained = trained_values(module.model)
    statistics = 4 * 2 * (4 + 6 + 5) + 8 * 3  # means, variances; three counters
    ledger = module.ledger
    for number in range(3):
        for client in range(4):
            for direction in ("up", "down"):
                size = ledger.total(round=number, client=client, direction=direction, name="model")
                assert size == 4 * trained + statistics
    assert not any("weight" in n and "frozen" in n for n in ledger.by("name"))
    names = {name.removeprefix("model/") for name in ledger.by("name")}
    assert not names & set(base_weights(module.model)) and not any("frozen" in name for name in names)
    others = {n: v for n, v in ledger.by("name", direction="down").items() if not n.startswith("model/")}
    others.pop("(header)")
    assert others == {"seed": 8 * 12, "merges": 8 * 12, "next_seed": 8 * 8}  # pushed in rounds 1 and 2

    dense = FedAvg(ImageClassifier(fed.network(), lr=0.1))
    fed.fit(dense, fed.data(rounds=3))
    whole = dense.ledger.total(round=1, client=0, direction="up", name="model") - statistics
    assert 4 * trained / whole == trained_values(module.model) / trained_values(dense.model) < 0.6


def test_what_was_missed_costs_its_factors(fed):
    module = fed.mud("mat", "ab", reset_every=1)
    module.worth_sending = lambda factors: 1000
    fed.fit(module, fed.data(rounds=4, sampler=predrawn([[0, 1], [0], [0], [0, 1]])))
    factors = sum(value.nbytes for value in trained_factors(module.model, module.theta()).values())
    sent = module.ledger.total(round=3, client=1, direction="down", name="missed")
    assert sent == 2 * (factors + 8) + 8  # two merges: factors and seed, and the number of the first
    assert module.ledger.total(round=3, client=0, direction="down", name="missed") == 0


def test_weights_are_numbers_of_batches(fed):
    """Clients of 20, 12, 28 and 16 samples in batches of 8 count 3, 2, 4 and 2."""
    replies = []

    class Kept(FedMUD):
        def note_aggregation_error(self, found, mean):
            replies.extend(found)
            self.mean = {name: value.clone() for name, value in mean.items()}
            super().note_aggregation_error(found, mean)

    module = Kept(fed.mud().model, training=LocalTraining(max_epochs=2))
    fed.fit(module, fed.data(rounds=1))
    assert [reply["num_steps"] for reply in replies] == [6, 4, 8, 4]
    for name, value in module.mean.items():
        if value.is_floating_point():
            parts = zip((3, 2, 4, 2), replies, strict=True)
            expected = sum(weight * reply["model"][name].double() for weight, reply in parts) / 11
            torch.testing.assert_close(value.double(), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("kind", "pattern"), FORMS)
def test_aggregation_error(fed, kind, pattern):
    """Above a thousandth where both factors train, rounding where one is frozen."""
    module = fed.fit(fed.mud(kind, pattern), fed.data(rounds=3))
    assert len(module.errors) == 3
    if pattern == "ab":
        assert module.errors[0] > 1e-3 and min(module.errors) > 1e-4
    else:
        assert max(module.errors) < 1e-5


def test_aggregation_error_is_its_formula(fed):
    """Two clients of equal weight with L = R = 1 and L = R = -1: all is lost."""
    module = fed.mud("mat", "ab")
    logged = {}
    module.log = lambda name, value, **_: logged.setdefault(name, float(value))
    theta = {name: value.clone() for name, value in module.theta().items()}
    names = trained_factors(module.model, theta)
    replies = [
        Reply(i, Payload(model=theta | {n: torch.full_like(v, s) for n, v in names.items()}, num_steps=5))
        for i, s in enumerate((1.0, -1.0))
    ]
    module.note_aggregation_error(replies, theta | {n: torch.zeros_like(v) for n, v in names.items()})
    assert logged == {"aggregation_error": 1.0}


def test_one_client_trains_factors_and_merges(fed):
    """One client, s = 1, plain factors: a plain loop of SGD on W + L R, then W <- W + L R."""
    module = fed.mud("mat", "ab", lr=0.2, epochs=1)
    net = copy.deepcopy(module.model)
    federation = fed.data(sizes=(24,), rounds=3)
    fed.fit(module, federation)
    for number in range(3):
        if number:
            merge(net)
        restart(net, module.factor_seed(number))
        for x, y in federation.client(0, number).loader():
            loss = F.cross_entropy(net(x), y)
            parameters = list(net.parameters())
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter -= 0.2 * gradient
    for name, value in net.state_dict().items():
        torch.testing.assert_close(module.model.state_dict()[name], value, rtol=1e-5, atol=1e-6, msg=name)


def test_all_layers_and_rounds_draw_from_streams_of_their_own(fed):
    """Also in the first round, where the official code repeats one seed."""
    module = fed.mud("kron", "fab+cfd")
    drawn = []
    for merges in range(3):
        restart(module.model, module.factor_seed(merges))
        for _, layer in decomposed_layers(module.model):
            drawn += [layer.frozen_left[0, 0, 0].item(), layer.frozen_right[0, 0, 0].item()]
    assert len(set(drawn)) == len(drawn) == 3 * 2 * 2


class StopAt(Callback):
    def __init__(self, step, path):
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer, module, *_):
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)
            trainer.should_stop = True


@pytest.mark.parametrize("reset_every", [1, 2])
def test_resumed_equals_uninterrupted(fed, tmp_path, reset_every):
    """Stopped between a push and the return of clients that were away; W, history and errors go on."""

    def fresh():
        return fed.mud(reset_every=reset_every), fed.data(rounds=8, sampler=predrawn(COHORTS))

    whole = fed.fit(*fresh())
    path = tmp_path / "last.ckpt"
    module, federation = fresh()
    fed.trainer(callbacks=[StopAt(4, path)], min_epochs=0).fit(module, datamodule=federation)
    assert module.trainer.global_step == 4
    module, federation = fresh()
    fed.trainer().fit(module, datamodule=federation, ckpt_path=path, weights_only=True)
    assert same(entries(module), entries(whole))
    assert module.states.digest() == whole.states.digest()
    assert (module.merges, module.merges_of, module.errors) == (whole.merges, whole.merges_of, whole.errors)
    assert module.ledger.rows == whole.ledger.rows and module.ledger.total() == whole.ledger.total()


def test_only_w_and_what_is_frozen_stays_with_a_client(fed):
    module = fed.mud()
    fed.fit(module, fed.data(rounds=3, sampler=predrawn([[0, 1], [0, 1], [0]])))
    assert module.states.clients() == [0, 1]
    state = module.states[0]
    assert state["merges"] == 2 and module.states[1]["merges"] == 1
    frozen = {name for name in module.model.state_dict() if "frozen" in name}
    assert set(state["personal"]) == frozen | set(base_weights(module.model))


def test_reset_every_is_a_number_of_rounds(fed):
    with pytest.raises(UserError, match="from 1 on, found 0"):
        fed.mud(reset_every=0)
    with pytest.raises(UserError, match="judged by the server's model"):
        fed.mud(targets=("received",))


@pytest.mark.parametrize(("kind", "pattern"), [("mat", "ab"), ("kron", "fab+cfd")])
def test_it_learns(fed, kind, pattern):
    """Far beyond chance (33 %), with merges in every round."""
    loop = fed.trainer()
    federation = fed.data(sizes=(48, 48, 48), rounds=6, batch_size=12)
    loop.fit(fed.mud(kind, pattern, lr=0.2), datamodule=federation)
    assert loop.callback_metrics["val/accuracy"] > 0.7
