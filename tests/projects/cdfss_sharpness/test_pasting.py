"""Digits and stamps on backgrounds: exact masks, disjoint classes, domains that differ."""

import numpy as np
import pytest
import torch

from projects.cdfss_sharpness.config import TARGETS
from projects.cdfss_sharpness.data import cutouts, digits
from projects.cdfss_sharpness.data.pasting import PastedEpisodes, Scenes, enlarged, paste
from shared.errors import UserError

DOMAINS = [(digits, name) for name in ("source", *TARGETS["digits"])]
DOMAINS += [(cutouts, name) for name in ("source", *TARGETS["stamps"])]


@pytest.mark.parametrize(("module", "name"), DOMAINS)
def test_episodes(module, name):
    scenes = module.scenes(name, 45)
    episodes = PastedEpisodes(scenes, count=9, shots=2, seed=1, keep=True)
    for place in range(9):
        episode = episodes[place]
        assert episode.label == place % len(scenes.classes)
        assert episode.support.shape == (2, 3, 45, 45) and episode.query.dtype == torch.float32
        for labels in (*episode.support_labels, episode.query_labels):
            assert 0.01 < labels.float().mean() < 0.7 and labels.max() == 1
        assert not torch.equal(episode.support_labels[0], episode.query_labels)
    assert episodes[3] is episodes[3]
    again = PastedEpisodes(scenes, count=9, shots=2, seed=1)[3]
    assert torch.equal(again.query, episodes[3].query) and again.query is not episodes[3].query
    assert not torch.equal(PastedEpisodes(scenes, count=9, shots=2, seed=2)[3].query, again.query)


@pytest.mark.parametrize("module", [digits, cutouts])
def test_targets_have_classes_the_source_has_not(module):
    targets = TARGETS["digits" if module is digits else "stamps"]
    source = set(module.scenes("source", 32).classes)
    assert all(source.isdisjoint(module.scenes(name, 32).classes) for name in targets)


def test_stamp_domains_share_no_photograph_and_no_stamp():
    photographs = [set(cutouts.SOURCE_PHOTOGRAPHS), *(set(p) for _, p in cutouts.TARGETS.values())]
    assert sum(map(len, photographs)) == len(set.union(*photographs))
    kinds = [kind for classes, _ in cutouts.TARGETS.values() for kind in classes]
    shown = [stamp.tobytes() for kind in [*kinds, *cutouts.SOURCE_CLASSES] for stamp in cutouts._stamps(kind)]
    assert len(shown) == len(set(shown)) > 250


@pytest.mark.parametrize("module", [digits, cutouts])
def test_heldout_shapes_are_others(module):
    train, heldout = (module.scenes("source", 32, heldout=part) for part in (False, True))
    assert train.classes == heldout.classes and min(heldout.instances) >= 2
    assert all(a != b for a, b in zip(train.instances, heldout.instances, strict=True))


def test_the_mask_is_where_the_digit_was_laid():
    """Without a distractor the picture differs from its background exactly under the mask."""
    stream = np.random.default_rng(0)
    background = np.full((20, 30, 3), 0.2, np.float32)
    alpha = np.zeros((6, 5), np.float32)
    alpha[1:4, 2:] = 1
    laid = paste(background, np.float32([1, 0, 0]), alpha, stream)
    changed = (background != np.float32(0.2)).any(2)
    assert (changed == (laid > 0.5)).all() and changed.sum() == 9


def test_inverted_is_the_source_style_inverted():
    """Warm on cool becomes dark on bright: means of foreground and background change places."""

    def contrast(name):
        episodes = PastedEpisodes(digits.scenes(name, 32), count=20, shots=1, seed=0)
        red = [
            (e.query[0][e.query_labels == 1].mean() - e.query[0][e.query_labels == 0].mean())
            for e in episodes
        ]
        return float(torch.stack(red).mean())

    assert contrast("source") > 0.3 and contrast("inverted") < -0.3


def test_noisy_is_grey():
    query = PastedEpisodes(digits.scenes("noisy", 32), count=1, shots=1, seed=0)[0].query
    std = torch.tensor([0.229, 0.224, 0.225])[:, None, None]
    mean = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
    pixels = query * std + mean
    assert (pixels[0] - pixels[1]).std() > 0.15  # noise of its own in every channel
    assert abs((pixels[0] - pixels[1]).mean()) < 0.03


def test_enlarging_keeps_the_shape():
    assert enlarged(np.ones((8, 4), np.float32), 20).shape == (20, 10)
    assert enlarged(np.ones((3, 9, 4), np.float32), 5).shape == (2, 5, 4)
    np.testing.assert_allclose(enlarged(np.full((5, 5), 0.3, np.float32), 9), 0.3, atol=1e-6)


def test_a_class_with_one_shape_is_named():
    scenes = Scenes("made up", ("a", "b"), (3, 1), lambda *arguments: None)
    with pytest.raises(UserError, match="made up: class 'b' has 1 shape;.*at least 2"):
        PastedEpisodes(scenes, count=2, shots=1, seed=0)


@pytest.mark.parametrize("module", [digits, cutouts])
def test_an_unknown_domain(module):
    with pytest.raises(UserError, match="have no domain 'nosy'"):
        module.scenes("nosy", 32)
