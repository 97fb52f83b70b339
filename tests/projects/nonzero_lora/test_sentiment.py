"""The sentiment task on a tiny encoder and made-up sentences; the real ones where they are in the cache."""

from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer
from torch import nn
from transformers import BertConfig, BertModel, BertTokenizerFast

from projects.nonzero_lora import build
from projects.nonzero_lora import module as module_file
from projects.nonzero_lora.config import Config
from projects.nonzero_lora.data import features, sentiment
from projects.nonzero_lora.data.sentiment import FILE, SentimentData, plan_batches, read_scores, select
from projects.nonzero_lora.heldout import evaluating
from projects.nonzero_lora.module import Classifier, NonZeroLoRA
from shared.data.catalogue import locate
from shared.errors import UserError
from shared.text.minilm import attention_mask, load_encoder, load_tokenizer, mean_pool
from shared.training.config import compose
from shared.training.experiment import Interrupted, evaluate_checkpoint, run_experiment
from shared.training.logging import read_history

WORDS = ["good", "fine", "great", "bad", "poor", "awful", "film", "plot", "the", "a", "was", "and", "very"]
WIDTH, BLOCKS = 32, 3


def write_encoder(folder: Path) -> None:
    """A random BERT of 3 blocks x 32 with dropout, in the layout of the real one."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join([*special, *WORDS]))
    BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(special) + len(WORDS),
        hidden_size=WIDTH,
        num_hidden_layers=BLOCKS,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=40,
        initializer_range=0.3,
    )
    BertModel(config).save_pretrained(folder)


def write_sentences(folder: Path, count: int = 120) -> None:
    """Lines as in the real file; the sign of the score is told by one word of six."""
    folder.mkdir()
    stream = torch.Generator().manual_seed(1)
    draw = lambda high: int(torch.randint(0, high, (), generator=stream))  # noqa: E731
    lines = []
    for number in range(count):
        positive = draw(2)
        words = [WORDS[6 + draw(7)] for _ in range(draw(9))]
        words.insert(draw(len(words) + 1), WORDS[draw(3) + 3 * (1 - positive)])
        score = (1.2 + 0.1 * draw(20)) * (1 if positive else -1)
        lines.append(f"{number}\t{score}\t{' '.join(words)}")
    lines[3:3] = ["x1\t0.9\tthe film", "x2\t-0.2\tthe plot", f"x3\t3.0\t{'very ' * 30}good"]
    (folder / FILE).write_text("\n".join(lines) + "\n")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with the tiny encoder and the made-up sentences."""
    write_encoder(tmp_path / "minilm")
    write_sentences(tmp_path / "movie-sentences")
    for module in (sentiment, module_file):
        monkeypatch.setattr(module, "fetch", lambda name: tmp_path / name)
    monkeypatch.setenv("PAPERWORKS_CACHE", str(tmp_path / "cache"))
    forget = [sentiment.load_features, module_file.pretrained_encoder]
    for function in forget:
        function.cache_clear()
    yield tmp_path
    for function in forget:
        function.cache_clear()


def config(*overrides: str) -> Config:
    layer = {
        "trainer": {"max_epochs": 1, "accelerator": "cpu", "devices": 1},
        "wandb": {"mode": "disabled"},
        "adapter": {"c_b": 1.0, "rank": 4, "targets": ["query", "value"]},
        "optimizer": {"lr": 0.01},
        "sentiment": {
            "test_sentences": 40,
            "heldout_sentences": 16,
            "batch_size": 8,
            "steps": 12,
            "heldout_steps": [0, 1, 3, 12],
        },
    }
    return compose(Config, layer, overrides=list(overrides))


def test_reading_and_selecting(world: Path) -> None:
    rows = read_scores(world / "movie-sentences" / FILE)
    assert len(rows) == 123 and rows[3] == (0.9, "the film")
    tokenizer = load_tokenizer(world / "minilm")
    ids, labels = select(rows, tokenizer, min_score=1.0, max_tokens=24)
    assert len(ids) == len(labels) == 120  # two neutral sentences and one long one are left out
    kept = [(score, text) for score, text in rows if abs(score) > 1 and len(text.split()) < 23]
    assert labels == [int(score > 0) for score, _ in kept]
    assert tokenizer.decode(ids[0]) == f"[CLS] {kept[0][1]} [SEP]"
    assert all(len(piece) == len(text.split()) + 2 for piece, (_, text) in zip(ids, kept, strict=True))
    assert select(rows, tokenizer, min_score=5.0, max_tokens=24) == ([], [])


def test_bad_files(world: Path) -> None:
    with pytest.raises(UserError, match=r"expected the movie sentences at .*absent\.txt.*download_data\.py"):
        read_scores(world / "absent.txt")
    (world / "torn.txt").write_text("1\t2.0\tgood film\n2\tbad film\n")
    with pytest.raises(UserError, match=r"torn\.txt, line 2: expected id, score and text.*'2\\tbad film'"):
        read_scores(world / "torn.txt")
    (world / "minilm" / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"model\.safetensors not found.*download_data\.py minilm"):
        load_encoder(world / "minilm")


def test_planned_batches() -> None:
    lengths = torch.randint(3, 25, (75,), generator=torch.Generator().manual_seed(0))
    plan = plan_batches(lengths, 4, 40, torch.Generator().manual_seed(5))
    assert len(plan) == 40 and all(len(batch) == 4 for batch in plan)
    epoch = torch.cat(plan[:18])  # 75 // 4 batches
    assert len(set(epoch.tolist())) == 72
    assert not torch.equal(epoch, torch.cat(plan[18:36]))
    again = plan_batches(lengths, 4, 40, torch.Generator().manual_seed(5))
    assert all(map(torch.equal, plan, again))
    padding = sum(int(lengths[b].max()) * 4 - int(lengths[b].sum()) for b in plan[:16])
    unsorted = torch.randperm(75, generator=torch.Generator().manual_seed(5))[:64].split(4)
    assert padding < 0.5 * sum(int(lengths[b].max()) * 4 - int(lengths[b].sum()) for b in unsorted)
    with pytest.raises(UserError, match="at least a batch of 80 training sentences, found 75"):
        plan_batches(lengths, 80, 1, torch.Generator())


def test_split_is_fixed_and_without_overlap(world: Path) -> None:
    first, second = (SentimentData(config().sentiment, seed) for seed in (0, 1))
    for data in (first, second):
        data.setup()
    assert torch.equal(first.test, second.test) and torch.equal(first.train, second.train)
    assert sorted(torch.cat([first.test, first.train]).tolist()) == list(range(120))
    heldout = torch.cat(first.heldout.plan)
    assert set(heldout.tolist()) == set(first.test[:16].tolist())
    used = torch.cat(first.train_dataloader().dataset.plan)
    assert set(used.tolist()) <= set(first.train.tolist())
    assert not torch.equal(used, torch.cat(second.train_dataloader().dataset.plan))
    assert torch.equal(
        torch.cat(first.test_dataloader().dataset.plan).sort().values, first.test.sort().values
    )


def test_cached_features_equal_the_whole_encoder(world: Path) -> None:
    """Lower blocks from the cache, upper blocks of the classifier = one pass of the library's own model."""
    tokenizer = load_tokenizer(world / "minilm")
    cached = sentiment.load_features(2, 1.0, 24)
    ids, labels = select(read_scores(world / "movie-sentences" / FILE), tokenizer, 1.0, 24)
    assert cached.labels.tolist() == labels and cached.lengths.tolist() == [len(piece) for piece in ids]
    compare_with_whole_encoder(world / "minilm", cached.batch(torch.arange(0, 120, 7)), ids[::7])


def compare_with_whole_encoder(folder: Path, batch: features.Batch, ids: list[list[int]]) -> None:
    encoder = load_encoder(folder)
    padded = load_tokenizer(folder).pad({"input_ids": ids}, return_tensors="pt")
    assert torch.equal(padded["attention_mask"].bool(), batch.mask)
    classifier = Classifier(encoder, 2, seed=0)
    with torch.no_grad():
        whole = encoder(**padded).last_hidden_state
        expected = classifier.head(mean_pool(whole, batch.mask))
        logits = classifier(batch.hidden, batch.mask)
    torch.testing.assert_close(logits, expected, rtol=0, atol=2e-5)
    assert logits.std() > 1e-3


def test_mean_pool_and_mask_ignore_padding() -> None:
    hidden = torch.randn(2, 5, 3)
    mask = torch.tensor([[True, True, False, False, False], [True] * 5])
    torch.testing.assert_close(mean_pool(hidden, mask)[0], hidden[0, :2].mean(0))
    allowed = attention_mask(mask)
    assert allowed.shape == (2, 1, 5, 5) and torch.equal(allowed[0, 0, 3], mask[0])


def test_cache_is_made_once_and_follows_its_sources(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = sentiment.compute
    monkeypatch.setattr(sentiment, "compute", lambda *a: calls.append(1) or real(*a))

    def load(blocks: int = 2) -> features.Features:
        sentiment.load_features.cache_clear()
        return sentiment.load_features(blocks, 1.0, 24)

    first = load()
    assert torch.equal(load().hidden, first.hidden) and len(calls) == 1
    assert not torch.equal(load(blocks=1).hidden, first.hidden) and len(calls) == 2
    (stored,) = (
        path for path in (world / "cache" / "features").glob("*.safetensors") if _holds(path, first.hidden)
    )
    stored.write_bytes(stored.read_bytes()[:1000])  # a torn file is computed again
    assert torch.equal(load().hidden, first.hidden) and len(calls) == 3
    with (world / "movie-sentences" / FILE).open("a") as file:
        file.write("new\t2.5\tgreat film\n")
    assert len(load().labels) == 121 and len(calls) == 4
    assert not list((world / "cache" / "features").glob("*.partial"))


def _holds(path: Path, hidden: torch.Tensor) -> bool:
    from safetensors.torch import load_file

    return torch.equal(load_file(path)["hidden"], hidden)


def test_only_the_factors_train_and_the_head_is_shared(world: Path) -> None:
    experiments = [build(config(f"adapter.c_b={c_b}")) for c_b in (0.0, 1.0)]
    heads = [experiment.module.model.head.weight for experiment in experiments]
    assert torch.equal(*heads) and heads[0].abs().max() <= WIDTH**-0.5
    assert not torch.equal(heads[0], build(config("seed=1")).module.model.head.weight)
    trained = [name for name, p in experiments[0].module.named_parameters() if p.requires_grad]
    assert len(trained) == 2 * 2 * 2  # blocks x (query, value) x (A, B)
    assert all("lora_" in name for name in trained)
    assert all(m.p == 0 for m in experiments[0].module.modules() if isinstance(m, nn.Dropout))


def test_a_run(world: Path, tmp_path: Path) -> None:
    """Everything that the tables read is logged, with the meaning they give it."""
    metrics = run_experiment(build, config("adapter.reset=true"), tmp_path / "run", group="g", name="n")
    assert {"test/accuracy", "test/loss", "train/loss", "heldout/step_0", "heldout/gain_12"} <= set(metrics)
    for step in (1, 3, 12):
        gain = metrics["heldout/step_0"] - metrics[f"heldout/step_{step}"]
        assert metrics[f"heldout/gain_{step}"] == pytest.approx(gain, abs=1e-12)
    curve = [
        (s, v) for s, name, v in read_history(tmp_path / "run" / "history.csv") if name == "heldout/loss"
    ]
    assert [step for step, _ in curve] == [0, 1, 3, 12]
    assert curve[2][1] == metrics["heldout/step_3"]
    base = build(config("optimizer.lr=1e-30"))
    trainer = Trainer(logger=False, enable_checkpointing=False, enable_progress_bar=False, accelerator="cpu")
    expected = trainer.test(base.module, base.datamodule, verbose=False)[0]
    data = SentimentData(config().sentiment, 0)
    data.setup()
    right = losses = 0.0
    for index in range(len(data.test_dataloader().dataset)):  # by hand, sentence by sentence
        batch = data.test_dataloader().dataset[index]
        with torch.no_grad():
            logits = base.module(batch)
        right += (logits.argmax(1) == batch.label).sum().item()
        losses -= logits.log_softmax(1)[torch.arange(len(batch.label)), batch.label].sum().item()
    assert expected["test/accuracy"] == pytest.approx(100 * right / 40, abs=1e-4)
    assert expected["test/loss"] == pytest.approx(losses / 40, abs=1e-5)


def test_heldout_loss_is_measured_without_dropout(world: Path, tmp_path: Path) -> None:
    """And training goes on with it."""
    plain, dropped = (
        run_experiment(build, config(f"adapter.dropout={rate}"), tmp_path / str(rate), group="g", name="n")
        for rate in (0.0, 0.9)
    )
    assert dropped["heldout/step_0"] == plain["heldout/step_0"]
    assert dropped["heldout/step_12"] != plain["heldout/step_12"]


def test_every_part_has_its_own_mode_back() -> None:
    model = nn.Sequential(nn.Dropout(), nn.Sequential(nn.Dropout(), nn.Linear(2, 2)))
    model[1].eval()
    before = [part.training for part in model.modules()]
    with pytest.raises(ZeroDivisionError), evaluating(model):
        assert not any(part.training for part in model.modules())
        1 / 0  # noqa: B018
    assert [part.training for part in model.modules()] == before and len(set(before)) == 2


def test_resumed_equals_uninterrupted(world: Path, tmp_path: Path) -> None:
    settings = config("adapter.reset=true", "adapter.dropout=0.2", "runtime.keep_checkpoint=true")
    whole = run_experiment(build, settings, tmp_path / "whole", group="g", name="n")
    asked = iter([False] * 4 + [True])
    with pytest.raises(Interrupted):
        run_experiment(build, settings, tmp_path / "parts", group="g", name="n", stop=lambda: next(asked))
    parts = run_experiment(build, settings, tmp_path / "parts", group="g", name="n")
    assert parts == whole
    checkpoint = tmp_path / "whole" / "checkpoints" / "last.ckpt"
    again = evaluate_checkpoint(build, settings, checkpoint, tmp_path)
    assert again["test/loss"] == whole["test/loss"]


def test_overfits_one_batch(world: Path) -> None:
    settings = config("adapter.targets=['*']", "adapter.rank=8", "adapter.alpha=32")
    data = SentimentData(settings.sentiment, 0)
    data.setup()
    batch = data.features.batch(data.train[:16])
    module = NonZeroLoRA(settings, Classifier(load_encoder(world / "minilm"), 2, 0))
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=0.01)
    with pytest.warns(UserWarning, match="self.trainer"):
        first = module.training_step(batch, 0).item()
    for _ in range(80):
        loss = nn.functional.cross_entropy(module(batch), batch.label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05 < 0.5 < first
    assert (module(batch).argmax(1) == batch.label).all()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["sentiment.test_sentences=120"], r"test_sentences < 120 usable sentences; found 16 and 120"),
        (["sentiment.heldout_sentences=50"], "found 50 and 40"),
        (["sentiment.min_score=4"], r"no sentence has \|score\| > 4"),
        (["sentiment.blocks=4"], "sentiment.blocks must be 1 to 3; found 4"),
        (["adapter.targets=[quary]"], "'quary' matches no linear layer.*attention.self.query"),
        (["task=sentimnet"], "Did you mean 'sentiment'"),
    ],
)
def test_bad_config(world: Path, overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(config(*overrides)).datamodule.setup()


def real(name: str) -> Path:
    folder = locate(name)
    if folder is None:
        pytest.skip(f"{name} is not in the cache: python scripts/download_data.py {name}")
    return folder


def test_real_sentences_and_encoder() -> None:
    """The counts of the embedded set, and its features against the library's whole encoder."""
    folder, text = real("minilm"), real("movie-sentences") / FILE
    rows = read_scores(text)
    assert len(rows) == 10605 and sum(score > 0 for score, _ in rows) == 5242
    assert sum(abs(score) > 1 for score, _ in rows) == 9023
    tokenizer, encoder = load_tokenizer(folder), load_encoder(folder)
    ids, labels = select(rows, tokenizer, 1.0, 24)
    assert len(ids) == 4022 and sum(labels) == 2063
    made = features.compute(encoder, ids[::80], labels[::80], blocks=4)
    compare_with_whole_encoder(folder, made.batch(torch.arange(len(made.labels))), ids[::80])


@pytest.mark.slow
def test_real_run_learns(tmp_path: Path) -> None:
    """100 steps from Init[AB] on the real encoder: far above the half that chance gives."""
    real("minilm"), real("movie-sentences")
    settings = compose(
        Config,
        {"trainer": {"max_epochs": 1, "accelerator": "cpu"}, "wandb": {"mode": "disabled"}},
        overrides=["optimizer.lr=1e-3", "adapter.c_b=1"],
    )
    metrics = run_experiment(build, settings, tmp_path / "run", group="g", name="n")
    assert metrics["test/accuracy"] > 75
