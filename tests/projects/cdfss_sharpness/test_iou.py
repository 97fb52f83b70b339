"""Intersections and unions by class."""

import math

import pytest
import torch
from torchmetrics.classification import BinaryJaccardIndex

from projects.cdfss_sharpness.iou import ForegroundIoU
from shared.errors import UserError


def episode(intersection, union, length=10):
    """Prediction and truth (1, 1, length) with these counts; the prediction is the smaller."""
    labels = torch.zeros(1, 1, length, dtype=torch.uint8)
    labels[..., :union] = 1
    predicted = torch.zeros(1, 1, length, dtype=torch.bool)
    predicted[..., :intersection] = True
    return predicted, labels


def test_counts_add_up_within_a_class():
    metric = ForegroundIoU(1)
    metric.update(*episode(1, 2), torch.tensor([0]))
    metric.update(*episode(3, 4), torch.tensor([0]))
    assert float(metric.compute()) == pytest.approx(100 * 4 / 6)  # and not 62.5


def test_mean_over_classes_that_were_seen():
    metric = ForegroundIoU(3)
    metric.update(*episode(1, 2), torch.tensor([0]))
    metric.update(*episode(4, 4), torch.tensor([2]))
    assert float(metric.compute()) == pytest.approx(75)
    assert [math.isnan(value) for value in metric.per_class().tolist()] == [False, True, False]


def test_perfect_and_empty_predictions():
    metric = ForegroundIoU(1)
    metric.update(*episode(4, 4), torch.tensor([0]))
    assert float(metric.compute()) == 100
    metric.update(*episode(0, 6), torch.tensor([0]))
    assert metric.union.tolist() == [10] and metric.intersection.tolist() == [4]


def test_against_torchmetrics():
    torch.manual_seed(0)
    predicted, labels = torch.rand(12, 9, 7) > 0.4, (torch.rand(12, 9, 7) > 0.5).byte()
    labels[:, :2, :2] = 255
    classes = torch.arange(12) % 3
    metric = ForegroundIoU(3)
    for part in range(0, 12, 4):
        metric.update(predicted[part : part + 4], labels[part : part + 4], classes[part : part + 4])
    wanted = []
    for label in range(3):
        own = BinaryJaccardIndex(ignore_index=255)
        own.update(predicted[classes == label].int(), labels[classes == label].int())
        wanted.append(float(own.compute()))
    assert float(metric.compute()) == pytest.approx(100 * sum(wanted) / 3, rel=1e-5)


def test_two_processes_add_up():
    """What a distributed run does: the states are summed."""
    whole, parts = ForegroundIoU(2), [ForegroundIoU(2), ForegroundIoU(2)]
    for number, counts in enumerate([(1, 2), (3, 4), (0, 5), (2, 2)]):
        for metric in (whole, parts[number % 2]):
            metric.update(*episode(*counts), torch.tensor([number // 2]))
    parts[0].intersection += parts[1].intersection
    parts[0].union += parts[1].union
    assert parts[0].compute() == whole.compute()


def test_wrong_shapes():
    metric = ForegroundIoU(1)
    with pytest.raises(UserError, match="one shape"):
        metric.update(torch.zeros(1, 3, 3, dtype=torch.bool), torch.zeros(1, 3, 4), torch.tensor([0]))
    with pytest.raises(UserError, match=r"classes 0..0, found 1"):
        metric.update(*episode(1, 2), torch.tensor([1]))
