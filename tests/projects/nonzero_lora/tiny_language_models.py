"""Tiny random language models of the recipes' four families, and data files in their real layouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

TEXT = [
    "Below is an instruction that describes a task. Write a response that appropriately completes the",
    "request. ### Instruction: ### Input: ### Response: The answer is: 42. the correct answer is true false",
    "solution1 option2 mnli hypothesis: premise: sst2 sentence: cola qnli question: mrpc sentence1: neutral",
]
SIZES = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4}


def save_tokenizer(folder: Path, bos: bool) -> Any:
    """A byte-level BPE tokenizer learnt from `TEXT`; with `bos` it begins every text with <s>."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    fast.save_pretrained(folder)
    return fast


def save_model(folder: Path, family: str) -> Path:
    """A random model of `family` (llama, qwen3, gemma3, t5) and its tokenizer, as a Hugging Face folder."""
    import transformers as hf

    folder.mkdir(parents=True, exist_ok=True)
    size = len(save_tokenizer(folder, bos=family in ("llama", "gemma3")))
    marks = {"vocab_size": size, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    torch.manual_seed(1)
    if family == "t5":
        heads = {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4}
        config = hf.T5Config(**marks, **heads, decoder_start_token_id=0)
        model = hf.T5ForConditionalGeneration(config)
    else:
        kinds = {
            "llama": (hf.LlamaConfig, hf.LlamaForCausalLM, {}),
            "qwen3": (hf.Qwen3Config, hf.Qwen3ForCausalLM, {"head_dim": 4, "tie_word_embeddings": True}),
            "gemma3": (hf.Gemma3TextConfig, hf.Gemma3ForCausalLM, {"head_dim": 4, "sliding_window": 8}),
        }
        make_config, make, more = kinds[family]
        model = make(make_config(**marks, **SIZES, num_key_value_heads=2, **more))
    with torch.no_grad():  # livelier than the default 0.02, so that logits of different inputs differ
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(8)
    model.save_pretrained(folder)
    return folder


def write_json(path: Path, records: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(records))


def write_llm_adapters(root: Path) -> None:
    """Three records a file, as in the repository AGI-Edgerunners/LLM-Adapters."""
    from projects.nonzero_lora.answers import CHOICES
    from projects.nonzero_lora.data.llm_adapters import ARITHMETIC, TRAINING_SETS

    top = root / "LLM-Adapters"
    sums = [
        {
            "instruction": f"What is {n} + 2?",
            "input": "",
            "output": f"{n} + 2 = {n + 2}.",
            "answer": f"{n + 2}.0",
        }
        for n in range(3)
    ]
    for name in TRAINING_SETS:
        write_json(top / "ft-training_set" / f"{name}.json", sums)
    for name in ARITHMETIC:
        letters = [{**record, "answer": ["C"]} for record in sums]
        numbers = [{**record, "answer": n + 2.0} for n, record in enumerate(sums)]
        write_json(top / "dataset" / name / "test.json", letters if name == "AQuA" else numbers)
    for name, options in CHOICES.items():
        records = [
            {
                "instruction": f"Question {n}? Answer format: {'/'.join(options)}",
                "input": "",
                "output": f"the correct answer is {options[n % 2]}",
                "answer": options[n % 2],
            }
            for n in range(3)
        ]
        write_json(top / "dataset" / name / "test.json", records)


def write_metamath(root: Path) -> None:
    """The PiSSA data set's metamath folder: one JSON object a line."""
    folder = root / "pissa-dataset" / "metamath"
    folder.mkdir(parents=True, exist_ok=True)
    train = [
        {"instruction": f"Double {n}.", "output": f"It is {2 * n}. The answer is: {2 * n}", "type": "GSM_SV"}
        for n in range(3)
    ]
    tests = [
        {"instruction": "Double 3.", "output": "6", "type": "gsm8k"},
        {"instruction": "Double 500.", "output": "1,000", "type": "gsm8k"},
        {"instruction": "Halve 1.", "output": "\\frac{1}{2}", "type": "math"},
        {"instruction": "Halve 2.", "output": "1", "type": "math"},
    ]
    for name, records in (("train", train), ("test", tests)):
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (folder / f"{name}.json").write_text(lines)


def write_glue(root: Path) -> None:
    """Three lines a file in the columns of the GLUE site, a stray quote and a byte-order mark among them."""
    mnli = "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\t"
    mnli += "sentence2_parse\tsentence1\tsentence2\tlabel1\tgold_label\n"
    filler = "\t".join("x" * 8)
    files = {
        "MNLI": (
            mnli,
            "".join(
                f'{filler}\tHe said "no.\tHe spoke {n}.\t{label}\t{label}\n'
                for n, label in enumerate(["entailment", "neutral", "contradiction"])
            ),
        ),
        "SST-2": ("sentence\tlabel\n", 'a "fine film\t1\ndull\t0\nfine\t1\n'),
        "CoLA": ("", "gj04\t1\t\tHe ran.\ngj04\t0\t*\tRan he the.\ngj04\t1\t\tShe sang.\n"),
        "QNLI": (
            "index\tquestion\tsentence\tlabel\n",
            "0\tWho?\tHe did.\tentailment\n1\tWhen?\tShe sang.\tnot_entailment\n2\tWhy?\tSo.\tentailment\n",
        ),
        "MRPC": (
            "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n",
            "1\t1\t2\tHe ran.\tHe did run.\n0\t3\t4\tIt fell.\tIt rose.\n1\t5\t6\tYes.\tYes!\n",
        ),
    }
    for task, (header, lines) in files.items():
        folder = root / "glue" / task
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "train.tsv").write_text(header + lines)
        (folder / ("dev_matched.tsv" if task == "MNLI" else "dev.tsv")).write_text(header + lines)
