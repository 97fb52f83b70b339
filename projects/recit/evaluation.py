"""What is measured on the features of the domains: few-shot accuracy, its interval, similarity of domains."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from projects.recit.data.pools import Pool
from projects.recit.prototypes import Bank, accuracies, bank, draw_episodes, mean_and_interval
from shared.training.seeding import generator
from shared.vision.cka import domain_cka

Metrics = dict[str, float]
CENTRES = {"": "support", "transductive/": "all"}  # prefix of the metrics -> what an episode is centred by


class Evaluation:
    """Collects features, draws episodes on them, and remembers the best epoch of every figure.

    Metrics, in per cent; <domain> is `source` or a target's name, `target` is the mean over targets:
    - `last/<domain>_<k>shot`, `transductive/<domain>_<k>shot` and the half widths `interval/...`;
    - `epoch/<domain>_<k>shot`, after every epoch, inductive;
    - `oracle_epoch/<domain>_<k>shot`: the best epoch by the test episodes themselves, for each domain. The
      official script reports this; it flatters, and is for comparing with published figures only;
    - `cka/<target>`: similarity of source and target features, 0 .. 1.

    Args:
        config: as `projects.recit.config.EpisodesConfig`.
        pools: the source's novel part first, then the targets.
        seed: of the episodes; every arm and epoch gets the same ones.
    """

    def __init__(self, config: Any, pools: Sequence[Pool], seed: int) -> None:
        self.config, self.seed = config, seed
        self.domains = ["source", *(pool.name for pool in pools[1:])]
        self.classes = [pool.classes for pool in pools]
        self.best: Metrics = {}
        self._collected: dict[int, list[tuple[Tensor, ...]]] = defaultdict(list)

    def collect(self, domain: int, features: Tensor, labels: Tensor, places: Tensor) -> None:
        """Keep features (B, D) of one batch, their labels and their places in the pool."""
        self._collected[domain].append((features.detach().float(), labels, places))

    def clear(self) -> None:
        self._collected.clear()

    def after_epoch(self, all_ranks: Callable[[Tensor], Tensor]) -> Metrics:
        """Inductive accuracies, noted as the best where they are."""
        found = self._accuracies(self._banks(self._take(all_ranks)), "", "epoch/")[0]
        self.best |= {name: max(self.best.get(name, value), value) for name, value in found.items()}
        return found

    def at_the_end(self, all_ranks: Callable[[Tensor], Tensor]) -> Metrics:
        """All metrics but those of single epochs. Without tests after epochs the last one is the best one."""
        features = self._take(all_ranks)
        banks = self._banks(features)
        metrics, intervals = self._accuracies(banks, "", "last/")
        metrics |= intervals
        metrics |= self._oracle(metrics)
        metrics |= self._accuracies(banks, "transductive/", "transductive/")[0]
        return metrics | self._similarities(features)

    def _take(self, all_ranks: Callable[[Tensor], Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Features and labels of every domain in the order of its pool, each image once."""
        taken = []
        for domain in range(len(self.domains)):
            features, labels, places = (
                all_ranks(torch.cat(parts)) for parts in zip(*self._collected[domain], strict=True)
            )
            places, order = places.sort(stable=True)
            first = torch.ones_like(places, dtype=torch.bool)
            first[1:] = places[1:] != places[:-1]  # samplers of several processes may repeat some
            taken.append((features[order[first]], labels[order[first]]))
        self.clear()
        return taken

    def _banks(self, features: list[tuple[Tensor, Tensor]]) -> list[Bank]:
        return [bank(*own, names) for own, names in zip(features, self.classes, strict=True)]

    def _accuracies(self, banks: list[Bank], kind: str, prefix: str) -> tuple[Metrics, Metrics]:
        """Accuracies under `prefix`, and the half widths of their intervals."""
        own, found, widths = self.config, {}, {}
        for shots in own.shots:
            for domain, each in zip(self.domains, banks, strict=True):
                stream = generator("episodes", self.seed, domain, shots)
                episodes = draw_episodes(
                    each, own.episodes, ways=own.ways, shots=shots, queries=own.queries, stream=stream
                )
                right = accuracies(each, episodes, CENTRES[kind])
                name = f"{domain}_{shots}shot"
                found[prefix + name], widths[f"interval/{name}"] = mean_and_interval(right)
            targets = [found[f"{prefix}{domain}_{shots}shot"] for domain in self.domains[1:]]
            if targets:
                found[f"{prefix}target_{shots}shot"] = sum(targets) / len(targets)
        return found, widths

    def _oracle(self, last: Metrics) -> Metrics:
        """The best epoch of each domain, and the mean of these over targets."""
        found = {}
        for shots in self.config.shots:
            names = {domain: f"{domain}_{shots}shot" for domain in self.domains}
            best = {d: self.best.get(f"epoch/{name}", last[f"last/{name}"]) for d, name in names.items()}
            found |= {f"oracle_epoch/{names[domain]}": value for domain, value in best.items()}
            if targets := [best[domain] for domain in self.domains[1:]]:
                found[f"oracle_epoch/target_{shots}shot"] = sum(targets) / len(targets)
        return found

    def _similarities(self, features: list[tuple[Tensor, Tensor]]) -> Metrics:
        """CKA of the source with each target, on as many random images of both, and the mean."""
        (source, _), found = features[0], {}
        for domain, (target, _) in zip(self.domains[1:], features[1:], strict=True):
            count = min(len(source), len(target), self.config.cka_images)
            stream = generator("cka", self.seed, domain)
            chosen = [
                own[torch.randperm(len(own), generator=stream)[:count].to(own.device)]
                for own in (source, target)
            ]
            found[f"cka/{domain}"] = domain_cka(*chosen)
        if found:
            found["cka/target"] = sum(found.values()) / len(found)
        return found
