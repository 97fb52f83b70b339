"""The GGUF conversion against transformers: tiny random tensors; the real file in the slow test."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from shared.errors import UserError
from shared.text.smollm import convert, converted, half_layout, hf_weights

HEADS, KEY_HEADS, SIZE, WIDTH, VOCABULARY = 4, 2, 6, 24, 40


def interleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's order written as a loop: row j and row j + d/2 of a head become neighbours."""
    size = len(rows) // heads
    order = [h * size + j + part for h in range(heads) for j in range(size // 2) for part in (0, size // 2)]
    return rows[order]


def test_half_layout_undoes_the_interleaving() -> None:
    rows = np.arange(HEADS * SIZE * 5, dtype=np.float32).reshape(-1, 5)
    assert not np.array_equal(interleave(rows, HEADS), rows)
    assert np.array_equal(half_layout(interleave(rows, HEADS), HEADS), rows)


def tiny_llama() -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=WIDTH,
            intermediate_size=20,
            num_hidden_layers=2,
            num_attention_heads=HEADS,
            num_key_value_heads=KEY_HEADS,
            head_dim=SIZE,
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
        )
    ).eval()


def as_gguf(model: torch.nn.Module) -> dict[str, np.ndarray]:
    """The weights of `model` under the names and in the row order of a GGUF file."""
    tensors = {
        "token_embd.weight": model.model.embed_tokens.weight,
        "output_norm.weight": model.model.norm.weight,
    }
    for number, layer in enumerate(model.model.layers):
        attention, mlp = layer.self_attn, layer.mlp
        for name, module in {
            "attn_norm": layer.input_layernorm,
            "attn_q": attention.q_proj,
            "attn_k": attention.k_proj,
            "attn_v": attention.v_proj,
            "attn_output": attention.o_proj,
            "ffn_norm": layer.post_attention_layernorm,
            "ffn_gate": mlp.gate_proj,
            "ffn_up": mlp.up_proj,
            "ffn_down": mlp.down_proj,
        }.items():
            tensors[f"blk.{number}.{name}.weight"] = module.weight
    arrays = {name: tensor.detach().numpy().copy() for name, tensor in tensors.items()}
    for name in arrays:
        if ".attn_q." in name or ".attn_k." in name:
            arrays[name] = interleave(arrays[name], HEADS if "attn_q" in name else KEY_HEADS)
    return arrays


def test_renamed_weights_are_the_model() -> None:
    model = tiny_llama()
    weights = hf_weights(as_gguf(model), HEADS, KEY_HEADS)
    expected = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}
    assert set(weights) == set(expected)
    for name, value in expected.items():
        assert np.array_equal(weights[name], value.numpy()), name


def write_gguf(path: Path, model: torch.nn.Module) -> None:
    from gguf import GGUFWriter

    writer = GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(2)
    writer.add_feed_forward_length(20)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    special, letters = ["<end>", "<pad>"], [chr(97 + i) for i in range(26)]
    digits, merged = [str(i) for i in range(10)], ["ab", "11"]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([*special, *letters, *digits, *merged])
    writer.add_token_types([3] * 2 + [1] * 38)
    writer.add_token_merges(["a b", "1 1"])
    for role, token in [("bos", 0), ("eos", 0), ("unk", 0), ("pad", 1)]:
        getattr(writer, f"add_{role}_token_id")(token)
    for name, array in as_gguf(model).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_whole_file_converts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    monkeypatch.setenv("PAPERWORKS_CACHE", str(tmp_path / "cache"))
    model = tiny_llama()
    write_gguf(tmp_path / "tiny.gguf", model)
    folder = converted(tmp_path / "tiny.gguf")
    loaded, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    ids = torch.randint(0, VOCABULARY, (2, 9))
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, model(ids).logits, atol=1e-5, rtol=0)
    # "ab" is merged, digits never are, whatever the merges say
    assert tokenizer("abc11")["input_ids"] == [38, 4, 29, 29]
    assert tokenizer.decode(tokenizer("abc11")["input_ids"]) == "abc11"
    stamp = (folder / "model.safetensors").stat().st_mtime_ns
    assert converted(tmp_path / "tiny.gguf") == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == stamp
    assert [path.name for path in folder.parent.iterdir() if path.name.startswith("making")] == []


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    from gguf import GGUFWriter

    writer = GGUFWriter(tmp_path / "x.gguf", "bert")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UserError, match="architecture llama, found bert"):
        convert(tmp_path / "x.gguf", tmp_path)


@pytest.mark.slow
def test_the_real_model_agrees_with_transformers_own_loader() -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from shared.data.catalogue import locate
    from shared.text.smollm import smollm2

    package = locate("smollm2")
    if package is None:
        pytest.skip("smollm2 is not in the cache: python scripts/download_data.py smollm2")
    folder = smollm2()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    assert sum(parameter.numel() for parameter in model.parameters()) == 134_515_008
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    france = tokenizer("The capital of France is", return_tensors="pt")
    written = model.generate(**france, do_sample=False, max_new_tokens=2)
    assert tokenizer.decode(written[0][-2:]) == " Paris."

    file = next(package.rglob("*.gguf"))
    settings = {"gguf_file": file.name}
    reference = AutoModelForCausalLM.from_pretrained(file.parent, dtype=torch.float32, **settings).eval()
    reference_tokenizer = AutoTokenizer.from_pretrained(file.parent, **settings)
    for text in ("In 1961 he wrote 23 letters.", "def f(x):\n    return x**2", "Où est l'été?", "a  b\t\tc"):
        assert tokenizer(text)["input_ids"] == reference_tokenizer(text)["input_ids"]
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            torch.testing.assert_close(model(ids).logits, reference(ids).logits, atol=1e-4, rtol=0)
