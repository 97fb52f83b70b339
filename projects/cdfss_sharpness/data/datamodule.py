"""Source episodes to train on, target episodes to test on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch import LightningDataModule
from torch.utils.data import Dataset

from projects.cdfss_sharpness.config import SOURCES, TARGETS
from projects.cdfss_sharpness.data import cutouts, digits, folders
from projects.cdfss_sharpness.data.episodes import PoolEpisodes, shuffled
from projects.cdfss_sharpness.data.pasting import PastedEpisodes
from shared.errors import UserError, suggest
from shared.training.loader import ResumableLoader
from shared.training.seeding import derive_seed

SCENES = {"digits": digits.scenes, "stamps": cutouts.scenes}


class EpisodeData(LightningDataModule):
    """One epoch holds all training episodes; every target has a loader of its own.

    `targets` lists (name, number of classes) in the order of the loaders.
    """

    def __init__(self, config: Any) -> None:
        super().__init__()
        settings = config.episodes
        names = target_names(settings)
        self.seed, self.batch, self.workers = config.seed, settings.batch, config.runtime.num_workers
        self.train: Dataset
        self.tests: list[Dataset]
        if settings.source in SCENES:
            self._paste(settings, names)
        else:
            self._read(settings, names, config.data.root)

    def _paste(self, settings: Any, names: list[str]) -> None:
        """Composed images; those for testing are kept in memory."""
        scenes, shots = SCENES[settings.source], settings.shots
        source = scenes("source", settings.size)
        self.train = PastedEpisodes(source, count=settings.train, shots=shots, seed=self.seed)
        common = {"shots": shots, "seed": derive_seed(self.seed, "test"), "keep": True}
        found = [scenes(name, settings.size) for name in names]
        self.tests = [PastedEpisodes(target, count=settings.test, **common) for target in found]
        self.targets = [(name, len(target.classes)) for name, target in zip(names, found, strict=True)]
        self.heldout_scenes = scenes("source", settings.size, heldout=True)

    def _read(self, settings: Any, names: list[str], data_root: str) -> None:
        """The benchmark's files."""
        if not data_root:
            raise UserError("the benchmark's sets are real sets, and data.root is not set.")
        root = Path(data_root).expanduser()
        splits = root / settings.splits
        common = {"shots": settings.shots, "size": settings.size}
        pool, entries = folders.pascal(root, splits)
        order = shuffled(entries, settings.train, self.seed)
        self.train = PoolEpisodes(pool, order=order, seed=self.seed, **common)
        self.source_pool, self.tests, self.targets = pool, [], []
        common["seed"] = derive_seed(self.seed, "test")
        for name in names:
            if name == "fss1000":
                target, every = folders.fss1000(root, splits)
                episodes = PoolEpisodes(target, order=every, **common)
            else:
                target = {"deepglobe": folders.deepglobe, "isic": folders.isic, "chest": folders.chest}[name](
                    root
                )
                episodes = PoolEpisodes(target, count=settings.test, **common)
            self.tests.append(episodes)
            self.targets.append((name, len(target.classes)))

    def heldout(self, count: int, shots: int, size: int) -> Dataset:
        """Source episodes that were not trained on (of VOC: other episodes of the same images)."""
        seed = derive_seed(self.seed, "heldout")
        if hasattr(self, "heldout_scenes"):
            return PastedEpisodes(self.heldout_scenes, count=count, shots=shots, seed=seed)
        return PoolEpisodes(self.source_pool, count=count, shots=shots, size=size, seed=seed)

    def train_dataloader(self) -> ResumableLoader:
        return self._loader(self.train, drop_last=True)

    def val_dataloader(self) -> list[ResumableLoader]:
        return [self._loader(episodes) for episodes in self.tests]

    def test_dataloader(self) -> list[ResumableLoader]:
        return self.val_dataloader()

    def _loader(self, dataset: Dataset, **settings: Any) -> ResumableLoader:
        return ResumableLoader(dataset, self.batch, seed=self.seed, num_workers=self.workers, **settings)


def target_names(settings: Any) -> list[str]:
    """The targets of `config.episodes`; a wrong name is an error."""
    if settings.source not in SOURCES:
        raise UserError(
            f"episodes.source takes {', '.join(SOURCES)}; found {settings.source!r}."
            + suggest(settings.source, SOURCES)
        )
    known = TARGETS[settings.source]
    for name in settings.targets:
        if name not in known:
            raise UserError(
                f"episodes.targets of {settings.source} are {', '.join(known)}; found {name!r}."
                + suggest(name, known)
            )
    return list(settings.targets) or list(known)
