"""Fine-tuning and examination on tiny random models: masks, padding, cached blocks, exact resume."""

import csv
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from projects.nonzero_lora import build, cached_blocks, language_model, requirements
from projects.nonzero_lora.config import Config
from projects.nonzero_lora.data.examples import Example
from projects.nonzero_lora.data.tokens import IGNORED, collate, encode
from projects.nonzero_lora.generation import answer
from projects.nonzero_lora.language_model import LanguageModelLoRA
from projects.nonzero_lora.pretrained import load_model, load_tokenizer
from shared.errors import UserError
from shared.training.config import base_layer, compose
from shared.training.experiment import Interrupted, evaluate_checkpoint, run_experiment
from tests.projects.nonzero_lora.test_language_data import write_brown
from tests.projects.nonzero_lora.tiny_language_models import (
    save_model,
    write_glue,
    write_llm_adapters,
    write_metamath,
)

FAMILIES = ["llama", "qwen3", "gemma3", "t5"]
PROMPTS = ["### Response:", "What is 1 + 2? Write a long response that appropriately completes", "a"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {family: save_model(folder / family, family) for family in FAMILIES}


def composed(model: Path, root: Path | str = "", **more: Any) -> Any:
    """A config for a tiny model: `lm`, `adapter`, ... as keyword dictionaries."""
    layer = {
        "task": "language_model",
        "trainer": {"accelerator": "cpu", "max_steps": 4, "max_epochs": None},
        "wandb": {"mode": "disabled"},
        "data": {"root": str(root)},
        "adapter": {"rank": 2, "alpha": 4.0, "targets": ["q_proj", "v_proj"]},
        "lm": {"model": str(model), "batch_size": 2, "test_batch_size": 2, "max_new_tokens": 3},
    }
    return compose(Config, base_layer(), layer, more)


@pytest.mark.parametrize("family", FAMILIES)
def test_left_padding_changes_no_answer(models: dict[str, Path], family: str) -> None:
    model, tokenizer = load_model(str(models[family]), "float32"), load_tokenizer(str(models[family]))
    model.train()
    together = answer(model, tokenizer, PROMPTS, 6)
    assert together == [answer(model, tokenizer, [prompt], 6)[0] for prompt in PROMPTS]
    assert model.training
    assert any(together) and len(set(together)) > 1
    assert not any(prompt in text for prompt, text in zip(PROMPTS, together, strict=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_losses_are_the_librarys(models: dict[str, Path], family: str, tmp_path: Path) -> None:
    """transformers' own loss, one unpadded example after the other."""
    targets = ["q", "v"] if family == "t5" else ["q_proj", "v_proj"]
    config = composed(models[family], adapter={"rank": 2, "alpha": 4.0, "targets": targets})
    model, tokenizer = load_model(config.lm.model, "float32"), load_tokenizer(config.lm.model)
    module = LanguageModelLoRA(config, model, tokenizer).eval()
    examples = [Example("### Response:", "The answer is: 42"), Example("a longer instruction", "true")]
    rows = [encode(e, tokenizer, 64, "response", model.config.is_encoder_decoder) for e in examples]
    expected = []
    with torch.no_grad():
        found = module.losses(collate(rows, tokenizer.pad_token_id))
        for ids, labels in rows:
            loss = model(input_ids=torch.tensor([ids]), labels=torch.tensor([labels])).loss
            expected.append(loss * sum(label != IGNORED for label in labels))
    counts = [sum(label != IGNORED for label in labels) for _, labels in rows]
    assert len(found) == sum(counts)
    torch.testing.assert_close(
        torch.stack([part.sum() for part in found.split(counts)]), torch.stack(expected)
    )


def test_a_prompt_at_the_limit_leaves_a_finite_loss(models: dict[str, Path]) -> None:
    config = composed(models["llama"])
    tokenizer = load_tokenizer(config.lm.model)
    module = LanguageModelLoRA(config, load_model(config.lm.model, "float32"), tokenizer)
    module.log = lambda *args, **kwargs: None
    row = encode(Example("a long prompt", "lost"), tokenizer, 3, "response", seq2seq=False)
    loss = module.training_step(collate([row], 0), 0)
    assert loss.item() == 0.0 and loss.requires_grad


def test_factors_stay_in_float32_over_bfloat16_weights(models: dict[str, Path]) -> None:
    config = composed(models["llama"])
    module = LanguageModelLoRA(
        config, load_model(config.lm.model, "bfloat16"), load_tokenizer(config.lm.model)
    )
    kinds = {(p.requires_grad, p.dtype) for p in module.parameters()}
    assert kinds == {(True, torch.float32), (False, torch.bfloat16)}
    ids = torch.arange(4, 12)[None]
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    module.losses(batch).mean().backward()
    trained = [p for p in module.parameters() if p.requires_grad]
    assert all(p.grad.dtype == torch.float32 for p in trained) and any(
        p.grad.abs().sum() > 0 for p in trained
    )


def test_cached_blocks_change_nothing(models: dict[str, Path], tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PAPERWORKS_CACHE", str(tmp_path))
    whole, upper = (load_model(str(models["llama"]), "float32") for _ in range(2))
    ids = torch.randint(3, 200, (11, 7), generator=torch.Generator().manual_seed(0))
    weights = models["llama"] / "model.safetensors"
    hidden = cached_blocks.cached_output(upper, weights, ids, 1)
    assert torch.equal(cached_blocks.cached_output(upper, weights, ids, 1), hidden)
    assert len(list((tmp_path / "features").glob("*.safetensors"))) == 1
    before = upper(ids).logits
    cached_blocks.drop_lower(upper, 1)
    torch.testing.assert_close(before, whole(ids).logits, atol=0, rtol=0)  # caching left the model whole
    assert len(upper.model.layers) == 1
    torch.testing.assert_close(upper(inputs_embeds=hidden).logits, whole(ids).logits, atol=1e-5, rtol=0)


def test_cached_blocks_refuse_what_they_cannot_do(models: dict[str, Path]) -> None:
    qwen = load_model(str(models["qwen3"]), "float32")
    with pytest.raises(UserError, match="LLaMA-type models, found qwen3"):
        cached_blocks.check(qwen, 1)
    with pytest.raises(UserError, match="0 to 1; found 2"):
        cached_blocks.check(load_model(str(models["llama"]), "float32"), 2)


@pytest.fixture
def brown_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_brown(tmp_path / "brown")
    monkeypatch.setenv("PAPERWORKS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(language_model, "fetch", {"brown": tmp_path / "brown"}.__getitem__)


BROWN = {"data": "brown/mystery", "max_length": 16, "heldout_examples": 6, "heldout_steps": [0, 2]}


def test_running_text_with_and_without_the_cache(
    models: dict[str, Path], brown_text: None, tmp_path: Path
) -> None:
    """The laptop table's path: the same losses and the same training, whether blocks are cached or not."""
    metrics = []
    for blocks, targets in ((0, ["layers.1.*.q_proj", "layers.1.*.v_proj"]), (1, ["q_proj", "v_proj"])):
        if blocks == 0:
            targets = [f"model.{target}" for target in targets]
        config = composed(
            models["llama"],
            lm={**BROWN, "cached_blocks": blocks},
            adapter={"targets": targets, "c_a": 1, "c_b": 0, "dropout": 0.0},
            optimizer={"lr": 3e-2},
        )
        experiment = build(config)
        if blocks == 0:  # the draws are named by layer, and the names differ: give both runs the same start
            start = {
                n.replace("layers.1", "layers.0"): p.detach().clone() for n, p in trained(experiment.module)
            }
        else:
            for name, parameter in trained(experiment.module):
                parameter.data.copy_(start[name])
        metrics.append(
            run_experiment(lambda _, e=experiment: e, config, tmp_path / str(blocks), group="g", name="n")
        )
    assert metrics[0].keys() == metrics[1].keys()
    for name in ("heldout/step_0", "heldout/step_2", "heldout/gain_2", "test/loss", "train/loss"):
        assert metrics[0][name] == pytest.approx(metrics[1][name], abs=1e-4), name
    assert metrics[0]["test/loss"] < metrics[0]["heldout/step_0"]


def trained(module: torch.nn.Module) -> list[tuple[str, torch.nn.Parameter]]:
    return [(name, p) for name, p in module.named_parameters() if p.requires_grad]


def test_starts_of_the_four_rows(models: dict[str, Path], brown_text: None, tmp_path: Path) -> None:
    """Init[A], Init[B] and the reset begin at the pretrained loss, Init[AB] does not."""
    losses = {}
    for c_a, c_b, reset in ((1, 0, False), (0, 1, False), (1, 1, True), (1, 1, False)):
        config = composed(models["llama"], lm=BROWN, adapter={"c_a": c_a, "c_b": c_b, "reset": reset})
        experiment = build(config)
        losses[c_a, c_b, reset] = language_model.heldout_loss(experiment.module, experiment.datamodule)
    plain = losses[1, 0, False]
    assert losses[0, 1, False] == plain
    assert losses[1, 1, True] == pytest.approx(plain, abs=1e-5)
    assert abs(losses[1, 1, False] - plain) > 1e-4


def test_overfits_one_batch_and_answers_it(models: dict[str, Path]) -> None:
    """From a random model to the right answers of two questions: no random weights reach that."""
    config = composed(
        models["llama"], adapter={"rank": 8, "alpha": 16.0, "targets": ["*_proj", "lm_head"], "c_b": 1}
    )
    tokenizer = load_tokenizer(config.lm.model)
    module = LanguageModelLoRA(config, load_model(config.lm.model, "float32"), tokenizer)
    examples = [Example("one plus one: ", "true"), Example("two plus two, as a task: ", "solution2")]
    batch = collate([encode(e, tokenizer, 64, "response", False) for e in examples], tokenizer.pad_token_id)
    optimizer = torch.optim.Adam([p for _, p in trained(module)], lr=1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        module.losses(batch).mean().backward()
        optimizer.step()
    answers = answer(module.model, tokenizer, [e.prompt for e in examples], 8)
    assert answers == [e.response for e in examples]


def test_accuracy_loss_and_artifacts(models: dict[str, Path], tmp_path: Path, monkeypatch) -> None:
    """Answers right in 2 of 3 and 1 of 3 questions give 66.7, 33.3 and their mean."""
    write_llm_adapters(tmp_path)
    wanted = {"AddSub": ["2", "3", "0"], "boolq": ["true", "true", "none"]}

    def fake(model: Any, tokenizer: Any, prompts: list[str], limit: int) -> list[str]:
        if "What is" in prompts[0]:
            return [wanted["AddSub"][int(p.split("What is ")[1][0])] for p in prompts]
        return [wanted["boolq"][int(p.split("Question ")[1][0])] for p in prompts]

    monkeypatch.setattr(language_model, "answer", fake)
    lm = {"data": "llm-adapters/math_10k", "tests": ["AddSub", "boolq"], "heldout_examples": 5}
    config = composed(models["llama"], tmp_path, lm=lm)
    metrics = run_experiment(build, config, tmp_path / "run", group="g", name="n")
    assert metrics["test/accuracy/AddSub"] == pytest.approx(200 / 3)
    assert metrics["test/accuracy/boolq"] == pytest.approx(100 / 3)
    assert metrics["test/accuracy"] == pytest.approx(50)
    assert metrics["test/perplexity"] == pytest.approx(
        torch.tensor(metrics["test/loss"]).exp().item(), rel=1e-5
    )
    rows = [json.loads(line) for line in (tmp_path / "run/artifacts/boolq.jsonl").read_text().splitlines()]
    assert [(row["output"], row["answer"], row["right"]) for row in rows] == [
        ("true", "true", True),
        ("true", "false", False),
        ("none", "true", False),
    ]


def test_resume_equals_uninterrupted(models: dict[str, Path], tmp_path: Path) -> None:
    """With dropout, accumulated gradients, a schedule and a reset; the checkpoint holds the factors alone."""
    write_metamath(tmp_path)
    config = composed(
        models["qwen3"],
        tmp_path,
        lm={
            "data": "metamath",
            "tests": ["gsm8k"],
            "train_examples": 2,
            "batch_size": 1,
            "heldout_examples": 2,
            "heldout_steps": [0, 1, 3],
        },
        adapter={"c_b": 1, "reset": True, "dropout": 0.3},
        optimizer={"lr": 1e-2, "schedule": "cosine", "warmup_steps": 1},
        trainer={"accumulate_grad_batches": 2, "gradient_clip_val": 1.0},
        runtime={"keep_checkpoint": True},
    )
    whole = run_experiment(build, config, tmp_path / "whole", group="g", name="n")
    asked = iter([False] * 4 + [True] * 99)
    with pytest.raises(Interrupted):
        run_experiment(build, config, tmp_path / "cut", group="g", name="n", stop=lambda: next(asked))
    checkpoint = tmp_path / "cut/checkpoints/last.ckpt"
    names = torch.load(checkpoint, weights_only=True)["state_dict"]
    assert names and all("lora_" in name for name in names)
    assert run_experiment(build, config, tmp_path / "cut", group="g", name="n") == whole
    assert {"heldout/step_0", "heldout/gain_1", "heldout/gain_3"} <= set(whole)
    histories = [list(csv.reader((tmp_path / run / "history.csv").open())) for run in ("whole", "cut")]
    assert sorted(histories[0]) == sorted(histories[1])
    again = evaluate_checkpoint(build, config, tmp_path / "whole/checkpoints/last.ckpt", tmp_path)
    assert again["test/loss"] == pytest.approx(whole["test/loss"], abs=1e-6)


def test_a_checkpoint_of_another_adapter_is_refused(models: dict[str, Path], tmp_path: Path) -> None:
    write_glue(tmp_path)
    lm = {"data": "glue/CoLA", "heldout_examples": 2}
    config = composed(models["llama"], tmp_path, lm=lm, runtime={"keep_checkpoint": True})
    run_experiment(build, config, tmp_path / "run", group="g", name="n")
    other = composed(models["llama"], tmp_path, lm=lm, adapter={"targets": ["o_proj"]})
    with pytest.raises(UserError, match="does not fit"):
        evaluate_checkpoint(build, other, tmp_path / "run/checkpoints/last.ckpt", tmp_path)


@pytest.mark.parametrize(
    ("lm", "message"),
    [
        ({"data": "browns/mystery"}, "Did you mean 'brown'"),
        ({"data": "metamath"}, "data.root=/path/to/data"),
        ({"data": "metamath", "cached_blocks": 1}, "brown text only"),
        ({"data": "metamath", "heldout_examples": 0}, "nothing would be examined"),
        ({"data": "brown/mystery", "tests": ["gsm8k"]}, "has no test sets"),
        ({"data": "metamath", "dtype": "float23"}, "Did you mean 'float32'"),
        ({"model": "/nowhere/at/all", "data": "metamath"}, "neither a folder nor in the Hugging Face cache"),
    ],
)
def test_mistakes_are_explained(models: dict[str, Path], lm: dict, message: str, monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match=message):
        build(composed(models["llama"], lm={"model": str(models["llama"])} | lm))


def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not hold a whole model"):
        load_model(str(tmp_path), "float32")


def test_requirements(models: dict[str, Path], tmp_path: Path) -> None:
    def names(**lm: Any) -> list[tuple[str, str]]:
        config = SimpleNamespace(**vars(Config()))
        config.task, config.lm = "language_model", SimpleNamespace(**(vars(Config().lm) | lm))
        return [(need.name, need.kind) for need in requirements(config)]

    assert names() == [("smollm2", "embedded"), ("brown", "embedded")]
    model = "meta-llama/Meta-Llama-3-8B"
    assert names(model=model, data="llm-adapters/math_10k") == [(model, "weights"), ("llm-adapters", "data")]
    assert names(model=str(models["t5"]), data="glue/CoLA")[1] == ("glue", "data")
    assert names(data="metamath")[1] == ("metamath", "data")


def test_cross_entropy_sums_over_all_labelled_tokens(models: dict[str, Path], tmp_path: Path) -> None:
    """`test/loss` weighs tokens, not batches: batch size must not matter."""
    write_glue(tmp_path)
    found = []
    for size in (1, 3):
        lm = {"data": "glue/QNLI", "heldout_examples": 3, "test_batch_size": size, "loss_on": "all"}
        experiment = build(composed(models["llama"], tmp_path, lm=lm))
        found.append(language_model.heldout_loss(experiment.module, experiment.datamodule))
    assert found[0] == pytest.approx(found[1], rel=1e-6)
    rows = [experiment.datamodule.heldout[index] for index in range(3)]
    total = count = 0.0
    for ids, _ in rows:
        with torch.no_grad():
            logits = experiment.module.model.eval()(torch.tensor([ids])).logits[0, :-1]
        total += cross_entropy(logits, torch.tensor(ids[1:]), reduction="sum").item()
        count += len(ids) - 1
    assert found[0] == pytest.approx(total / count, rel=1e-5)
