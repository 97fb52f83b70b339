"""The order of batches is a function of (seed, epoch), and a loader restarts inside an epoch."""

import random

import numpy as np
import pytest
import torch
from lightning.pytorch.utilities.data import _update_dataloader
from torch.utils.data import TensorDataset
from torch.utils.data.distributed import DistributedSampler

from shared.training.loader import ResumableLoader
from shared.training.seeding import derive_seed, generator


def order(loader, epoch=0):
    loader.sampler.set_epoch(epoch)
    return torch.cat([batch[0] for batch in loader]).tolist()


DATA = TensorDataset(torch.arange(23))


def test_order_depends_on_seed_and_epoch_alone():
    first = order(ResumableLoader(DATA, 4, seed=1, shuffle=True))
    torch.rand(5), np.random.rand(5), random.random()  # noqa: NPY002
    again = ResumableLoader(DATA, 7, seed=1, shuffle=True)
    assert order(again) == first
    assert sorted(first) == list(range(23))
    assert order(again, epoch=1) != first
    assert order(ResumableLoader(DATA, 4, seed=2, shuffle=True)) != first
    assert order(ResumableLoader(DATA, 4)) == list(range(23))


def test_iterating_leaves_the_global_stream_alone():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    order(ResumableLoader(DATA, 4, seed=1, shuffle=True))
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("taken", [0, 1, 5, 6])
def test_resuming_inside_an_epoch_gives_the_rest(taken, workers):
    loader = ResumableLoader(DATA, 4, seed=1, shuffle=True, num_workers=workers)
    iterator = iter(loader)
    for _ in range(taken):
        next(iterator)
    state = loader.state_dict()
    rest = [batch[0].tolist() for batch in iterator]
    resumed = ResumableLoader(DATA, 4, seed=1, shuffle=True, num_workers=workers)
    resumed.load_state_dict(state)
    got = [batch[0].tolist() for batch in resumed]
    assert got == (rest or [batch[0].tolist() for batch in loader])  # a finished epoch starts the next one
    assert len([1 for _ in resumed]) == 6  # the position is used once


def test_survives_being_rebuilt_for_several_ranks():
    """Lightning rebuilds loaders around a distributed sampler; ours keeps its type and its position."""
    halves = []
    for rank in range(2):
        sampler = DistributedSampler(DATA, num_replicas=2, rank=rank, shuffle=True, seed=1)
        rebuilt = _update_dataloader(ResumableLoader(DATA, 4, seed=1, shuffle=True), sampler)
        assert isinstance(rebuilt, ResumableLoader)
        batches = [batch[0].tolist() for batch in rebuilt]
        rebuilt.load_state_dict({"handed_out": 1})
        assert [batch[0].tolist() for batch in rebuilt] == batches[1:]
        halves.append({index for batch in batches for index in batch})
    assert halves[0] | halves[1] == set(range(23))


def test_named_streams_are_stable_and_distinct():
    assert derive_seed(0, "client", 7) == 2563399044  # never changes: finished runs depend on it
    assert derive_seed(0, "client", 7) != derive_seed(0, "client", 8)
    assert not torch.equal(
        torch.rand(4, generator=generator(0, "a")), torch.rand(4, generator=generator(0, "b"))
    )
