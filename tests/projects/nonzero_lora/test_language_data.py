"""The text loaders on three-record files in the published layouts, and on damaged ones."""

import json
from pathlib import Path

import pytest

from projects.nonzero_lora.data import brown, glue, llm_adapters, metamath
from projects.nonzero_lora.data.examples import Example, Question
from projects.nonzero_lora.data.tokens import IGNORED, collate, encode
from shared.errors import UserError
from tests.projects.nonzero_lora.tiny_language_models import (
    save_tokenizer,
    write_glue,
    write_json,
    write_llm_adapters,
    write_metamath,
)


def test_llm_adapters(tmp_path: Path) -> None:
    write_llm_adapters(tmp_path)
    tests = [*llm_adapters.ARITHMETIC, *llm_adapters.COMMONSENSE]
    task = llm_adapters.load(tmp_path, "math_10k", tests)
    assert len(task.train) == 3 and len(task.tests) == 14 and len(task.heldout) == 42
    assert task.train[1].response == "1 + 2 = 3."
    assert "### Instruction:\nWhat is 1 + 2?\n" in task.train[1].prompt
    assert "### Input" not in task.train[1].prompt and task.train[1].prompt.endswith("### Response:\n")
    assert task.tests["AQuA"][0].answer == "C"  # given as a list of one
    assert task.tests["gsm8k"][2] == Question(task.train[2].prompt, "4.0", "number")
    assert task.tests["boolq"][1].answer == "false"
    for name in llm_adapters.TRAINING_SETS:
        assert llm_adapters.load(tmp_path, name, []).train


def test_an_input_gets_its_own_heading(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    write_json(path, [{"instruction": "Add.", "input": "1 and 2", "output": "3"}])
    assert "### Input:\n1 and 2\n\n### Response:" in llm_adapters.read_examples(path)[0].prompt


def test_metamath(tmp_path: Path) -> None:
    write_metamath(tmp_path)
    task = metamath.load(tmp_path, ["gsm8k", "math"], train_examples=2)
    assert [len(task.train), len(task.heldout)] == [2, 1]
    assert task.train[0].prompt.endswith("### Instruction:\nDouble 0.\n\n### Response:")
    assert task.train[0].response == "It is 0. The answer is: 0\n"
    assert [question.answer for question in task.tests["gsm8k"]] == ["6", "1,000"]
    assert task.tests["math"][0].answer == "\\frac{1}{2}"
    assert len(metamath.load(tmp_path, [], 0).train) == 3
    whole = "Below ... ### Instruction:\nx\n\n### Response: Let's think step by step."
    assert metamath.prompt_of(whole) == whole  # test files of the data set may hold whole prompts


@pytest.mark.parametrize("name", list(glue.TASKS))
def test_glue(tmp_path: Path, name: str) -> None:
    write_glue(tmp_path)
    task = glue.load(tmp_path, name, [name])
    assert len(task.train) == len(task.heldout) == len(task.tests[name]) == 3
    assert {question.answer for question in task.tests[name]} <= set(glue.TASKS[name].words.values())


def test_glue_prompts(tmp_path: Path) -> None:
    write_glue(tmp_path)
    first = {name: glue.load(tmp_path, name, []).train[0] for name in glue.TASKS}
    assert first["MNLI"] == Example('mnli hypothesis: He spoke 0. premise: He said "no.', "entailment")
    assert first["SST-2"] == Example('sst2 sentence: a "fine film', "positive")
    assert first["CoLA"] == Example("cola sentence: He ran.", "acceptable")
    assert first["QNLI"] == Example("qnli question: Who? sentence: He did.", "entailment")
    assert first["MRPC"] == Example("mrpc sentence1: He ran. sentence2: He did run.", "equivalent")


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (lambda root: llm_adapters.load(root, "math_10k", []), "LLM-Adapters/ft-training_set"),
        (lambda root: metamath.load(root, [], 0), "pissa-dataset/metamath/train.json"),
        (lambda root: glue.load(root, "CoLA", []), "dev_matched.tsv"),
    ],
)
def test_a_missing_file_names_layout_and_source(tmp_path: Path, load, expected: str) -> None:
    with pytest.raises(UserError, match=expected) as caught:
        load(tmp_path)
    assert "https://" in str(caught.value) and "is missing" in str(caught.value)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (
            [{"instruction": "a", "output": "b"}, {"instruction": "a"}],
            "record 1: expected text under 'output'",
        ),
        ([{"instruction": "a", "output": "b"}, 7], "record 1: expected an object"),
        ([{"instruction": ["a", "b"], "output": "b"}], "record 0: expected text under 'instruction'"),
    ],
)
def test_a_malformed_record_is_named(tmp_path: Path, records: list, message: str) -> None:
    path = tmp_path / "train.json"
    write_json(path, records)
    with pytest.raises(UserError, match=message) as caught:
        llm_adapters.read_examples(path)
    assert str(path) in str(caught.value)


def test_malformed_answers_types_and_lines_are_named(tmp_path: Path) -> None:
    write_json(tmp_path / "t.json", [{"instruction": "a", "answer": "many"}])
    with pytest.raises(UserError, match="record 0: expected a number as answer, found 'many'"):
        llm_adapters.read_questions(tmp_path / "t.json", "gsm8k")
    write_json(tmp_path / "t.json", [{"instruction": "a", "output": "1", "type": "code"}])
    with pytest.raises(UserError, match="record 0: expected type gsm8k or math, found 'code'"):
        metamath.read_questions(tmp_path / "t.json")
    (tmp_path / "t.json").write_text('{"instruction": "a"')
    with pytest.raises(UserError, match="record 0: not JSON"):
        metamath.read_examples(tmp_path / "t.json")
    (tmp_path / "t.tsv").write_text("sentence\tlabel\nfine\t2\n")
    with pytest.raises(UserError, match="line 2: expected a label out of 0, 1, found '2'"):
        glue.read_examples(tmp_path / "t.tsv", glue.TASKS["SST-2"])
    (tmp_path / "t.tsv").write_text("text\tlabel\nfine\t1\n")
    with pytest.raises(UserError, match=r"line 2: expected the columns sentence, label; sentence not found"):
        glue.read_examples(tmp_path / "t.tsv", glue.TASKS["SST-2"])


def test_unknown_names_get_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Did you mean 'gsm8k'"):
        llm_adapters.load(tmp_path, "math_10k", ["gsm8"])
    with pytest.raises(UserError, match="Did you mean 'commonsense_15k'"):
        llm_adapters.load(tmp_path, "commonsense_15", [])
    with pytest.raises(UserError, match="Did you mean 'math'"):
        metamath.load(tmp_path, ["maths"], 0)
    with pytest.raises(UserError, match="Did you mean 'SST-2'"):
        glue.load(tmp_path, "SST2", [])


TAGGED = """

\tThe/at man/nn said/vbd ,/, ``/`` I/ppss didn't/dod* ask/vb ;/. ;/. why/wrb ?/. ?/. ''/''


\t(/( He/pps left/vbd --/-- at/in 8/cd:hl 1/2/cd )/) ./.
"""


def write_brown(folder: Path, files: int = 7) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"cl{number:02d}" for number in range(1, files + 1)]
    (folder / "cats.txt").write_text("".join(f"{name} mystery\n" for name in names) + "cr01 humor\n")
    for number, name in enumerate(names):
        words = " ".join(f"word{number}x{i}/nn" for i in range(40))
        (folder / name).write_text(f"\n\t{words} ./.\n")


def test_brown_text_is_readable() -> None:
    lines = brown.plain_text(TAGGED).splitlines()
    assert lines == ['The man said, "I didn\'t ask; why?"', "(He left -- at 8 1/2)."]


def test_brown_chunks_keep_files_apart(tmp_path: Path) -> None:
    write_brown(tmp_path)
    tokenizer = save_tokenizer(tmp_path / "tokenizer", bos=True)
    train, heldout = brown.chunks(tmp_path, "mystery", tokenizer, 8)
    assert train.shape[1] == heldout.shape[1] == 8
    seen = [set("".join(tokenizer.decode(row) for row in side).split("word")) for side in (train, heldout)]
    files = [{word.split("x")[0] for word in side if "x" in word} for side in seen]
    assert {"0", "6"} <= files[1] and {"1", "2", "3", "4", "5"} <= files[0]
    first = [tokenizer.decode(row) for row in train[:5]]
    assert [f"word{number}" in text for number, text in enumerate(first, 1)] == [True] * 5  # files in turn
    with pytest.raises(UserError, match="Did you mean 'mystery'"):
        brown.chunks(tmp_path, "mistery", tokenizer, 8)
    with pytest.raises(UserError, match="no chunk of 5000 tokens"):
        brown.chunks(tmp_path, "mystery", tokenizer, 5000)
    with pytest.raises(UserError, match=r"download_data\.py brown"):
        brown.genres(tmp_path / "nothing")


def test_the_loss_counts_the_response_only(tmp_path: Path) -> None:
    tokenizer = save_tokenizer(tmp_path, bos=True)
    example = Example("### Response:\n", "The answer is: 42")
    ids, labels = encode(example, tokenizer, 100, "response", seq2seq=False)
    prompt = tokenizer(example.prompt)["input_ids"]
    assert prompt[0] == tokenizer.bos_token_id and ids[: len(prompt)] == prompt
    assert labels[: len(prompt)] == [IGNORED] * len(prompt) and labels[len(prompt) :] == ids[len(prompt) :]
    assert ids[-1] == tokenizer.eos_token_id and tokenizer.decode(ids[len(prompt) : -1]) == example.response
    assert encode(example, tokenizer, 100, "all", seq2seq=False) == (ids, ids)
    cut = encode(example, tokenizer, len(prompt) + 1, "response", seq2seq=False)
    assert cut == (ids[: len(prompt) + 1], [IGNORED] * len(prompt) + ids[len(prompt) : len(prompt) + 1])
    source, target = encode(example, tokenizer, 100, "response", seq2seq=True)
    assert source == prompt and target == ids[len(prompt) :]
    with pytest.raises(UserError, match="Did you mean 'response'"):
        encode(example, tokenizer, 9, "responses", seq2seq=False)


def test_padding_is_neither_read_nor_scored() -> None:
    batch = collate([([5, 6, 7], [IGNORED, 6, 7]), ([8], [8])], pad=2)
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 2, 2]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["labels"].tolist() == [[IGNORED, 6, 7], [8, IGNORED, IGNORED]]


def test_json_lines_and_lists_read_alike(tmp_path: Path) -> None:
    records = [{"instruction": "a\u2028b", "output": "c"}] * 2
    write_json(tmp_path / "list.json", records)
    (tmp_path / "lines.json").write_text("\n".join(json.dumps(r, ensure_ascii=False) for r in records))
    assert metamath.read_examples(tmp_path / "list.json") == metamath.read_examples(tmp_path / "lines.json")
