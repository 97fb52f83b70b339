"""Six classics of federated learning, and what they are measured against, on one non-IID setting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shared.data.catalogue import Requirement
    from shared.training.experiment import Experiment


def build(config: Any) -> Experiment:
    """The experiment of `config.method` on the federation of `config.federation`."""
    from projects.fl_classics.data import datasets
    from projects.fl_classics.methods import TuneAtTheEnd, federate
    from projects.fl_classics.networks import network
    from shared.federated.classifier import ImageClassifier
    from shared.federated.settings import experiment, federated_data

    images, train, test = datasets(config.federation.dataset, config.data.root, config.augment)
    rates = config.optimizer
    classifier = ImageClassifier(
        network(config.network, images), lr=rates.lr, momentum=rates.momentum, weight_decay=rates.weight_decay
    )
    data = federated_data(train, test, config.federation, config.seed)
    watch = ("val/accuracy", "personal/val/accuracy") if config.federation.client_test else ("val/accuracy",)
    run = experiment(federate(classifier, config), data, config, watch=watch, scale=100, last=config.last)
    if config.federation.client_test:
        run.callbacks.append(TuneAtTheEnd())
    return run


def requirements(config: Any) -> list[Requirement]:
    """The image set that the run reads, for the check before a table starts."""
    from shared.data.images import image_requirements

    return image_requirements(config.federation.dataset, config.data.root)
