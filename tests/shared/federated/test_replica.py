"""A replica is what `copy.deepcopy` would have made."""

import copy

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.nn.utils import parametrizations

from shared.federated.replica import replica


def same(left, right):
    found, expected = left.state_dict(), right.state_dict()
    return list(found) == list(expected) and all(
        torch.equal(found[name], expected[name]) for name in expected
    )


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.parts = [self.first, self.second]
        self.by_name = {"first": self.first, "none": None}
        self.act = lambda x: x + 1
        self.options = {"rates": [1, 2], "empty": {}}
        self.register_buffer("kept", torch.ones(2), persistent=False)


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.2)),
        nn.LSTM(3, 4, 2),
        parametrizations.weight_norm(nn.Linear(3, 4)),
        parametrizations.orthogonal(nn.Linear(4, 4)),
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        Tied(),
    ],
    ids=lambda module: type(module).__name__,
)
def test_it_equals_a_deep_copy(module):
    found, expected = replica(module), copy.deepcopy(module)
    assert same(found, expected) and repr(found) == repr(expected)
    assert vars(found).keys() == vars(expected).keys()
    originals = {tensor.data_ptr() for tensor in (*module.parameters(), *module.buffers())}
    assert not originals & {tensor.data_ptr() for tensor in (*found.parameters(), *found.buffers())}
    assert [p.requires_grad for p in found.parameters()] == [p.requires_grad for p in module.parameters()]


def test_its_own_structure_is_kept():
    original = Tied()
    found = replica(original)
    assert found.second.weight is found.first.weight is not original.first.weight
    assert found.parts[0] is found.first and found.by_name["first"] is found.first
    found.options["rates"].append(3)
    found.first.register_forward_hook(lambda *args: None)
    assert original.options == {"rates": [1, 2], "empty": {}} and not original.first._forward_hooks


def test_shared_tensors_are_the_originals():
    module = nn.Linear(3, 4)
    found = replica(module, [module.weight])
    assert found.weight is module.weight and found.bias is not module.bias


def test_an_lstm_runs_on_its_own_weights():
    module = nn.LSTM(3, 4)
    found, x = replica(module), torch.randn(2, 1, 3)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    assert found(x)[0].abs().sum() > 0 and module(x)[0].abs().sum() == 0


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = nn.Linear(2, 2)

    def __deepcopy__(self, memo):
        made = Own()
        made.mark = "own"
        return made


def test_a_copy_of_its_own_kind_is_respected():
    assert replica(nn.Sequential(Own()))[0].mark == "own"


def test_a_lightning_module_leaves_its_trainer_behind(fed):
    class Lit(LightningModule):
        def __init__(self):
            super().__init__()
            self.save_hyperparameters({"rate": 0.1})
            self.net = nn.Linear(2, 2)

    module = Lit()
    found, expected = replica(module), copy.deepcopy(module)
    assert found.hparams == expected.hparams and found._trainer is None
    assert same(found, expected)
