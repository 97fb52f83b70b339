"""From the config to the experiment."""

from __future__ import annotations

from typing import Any

import torch

from projects.fedwsq.config import TASKS
from projects.fedwsq.data import datasets, federation
from projects.fedwsq.measures import Sharpness, Uplink
from projects.fedwsq.methods import classifier, federate
from projects.fedwsq.networks import network
from projects.fedwsq.update_error import UpdateError
from shared.errors import UserError, suggest
from shared.federated.settings import experiment
from shared.training.experiment import Experiment
from shared.training.seeding import derive_seed


def experiment_of(config: Any) -> Experiment:
    """Networks with and without weight standardisation, and all methods of a seed, share data and cohorts."""
    if config.task not in TASKS:
        raise UserError(f"task takes {', '.join(TASKS)}; found '{config.task}'.{suggest(config.task, TASKS)}")
    images, train, test = datasets(config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(config.seed, "network"))
        net = network(config.network, images.images.shape[1], images.classes)
    local = classifier(net, config.optimizer)
    module = UpdateError(local, config) if config.task == "update_error" else federate(local, config)
    run = experiment(module, federation(train, test, config), config, scale=100)
    run.callbacks.append(Uplink())
    if config.hessian_images:
        run.callbacks.append(Sharpness(train, config.hessian_images, config.seed))
    return run
