"""Messages keep names and values, count their bytes exactly, and cannot be damaged unnoticed."""

import pickle

import numpy as np
import pytest
import safetensors.torch
import torch

from shared.errors import UserError
from shared.federated import trees, wire
from shared.federated.codecs import Chain
from shared.federated.codecs.quantise import Uniform
from shared.federated.codecs.sparse import TopK
from shared.federated.errors import WireError
from shared.federated.payload import Payload, Reply


def round_trip(payload):
    return Chain().decode(Chain().encode(payload))


def test_nested_names_scalars_and_every_dtype_survive():
    tensors = {str(kind): torch.ones(3, 2).to(kind) for kind in wire.DTYPES}
    sent = Payload(
        model=tensors,
        prototypes={3: torch.arange(4.0), 11: {"deep/er#x~": torch.tensor(7)}},
        empty=torch.zeros(0, 5),
        first_round={},
        deep={"in/side": {}},
        n=600,
        lr=0.1,
        big=2**62 + 1,
        nan=float("nan"),
        flag=True,
        text="ü",
    )
    got = round_trip(sent)
    for name, value in tensors.items():
        assert got["model"][name].dtype == value.dtype and torch.equal(got["model"][name], value)
    assert torch.equal(got["prototypes"]["11"]["deep/er#x~"], torch.tensor(7))
    assert got["prototypes"]["11"]["deep/er#x~"].shape == ()
    assert got["empty"].shape == (0, 5)
    assert got["first_round"] == {} and got["deep"] == {"in/side": {}}
    assert (got["n"], got["lr"], got["big"], got["flag"], got["text"]) == (600, 0.1, 2**62 + 1, True, "ü")
    assert isinstance(got["n"], int) and np.isnan(got["nan"])


def test_bytes_by_name_are_exact_and_add_up():
    message = Chain().encode(Payload(model={"w": torch.zeros(7, 3), "half": torch.zeros(5).half()}, seed=3))
    sizes = wire.sizes(message)
    assert (sizes["model/w"], sizes["model/half"], sizes["seed"]) == (84, 10, 8)
    assert sum(sizes.values()) == len(message)


def test_order_of_names_is_kept_through_any_chain():
    names = [f"layer{i}" for i in (5, 1, 9, 0, 7, 3)]
    sent = Payload(model={name: torch.randn(40) for name in names}, n=1)
    for chain in (Chain(), Chain([TopK(0.5, only="1|7"), Uniform(4, only="5|1")])):
        assert list(chain.decode(chain.encode(sent))["model"]) == names


def test_body_is_a_safetensors_file():
    message = Chain().encode(Payload(w=torch.arange(5)))
    assert torch.equal(safetensors.torch.load(message[wire.START :])["w"], torch.arange(5))


def test_tied_weights_travel_once():
    tied = torch.randn(50, 20)
    message = Chain().encode(Payload(model={"embedding": tied, "head": tied}))
    assert len(message) < 1.5 * tied.nbytes
    assert torch.equal(Chain().decode(message)["model"]["head"], tied)


def test_views_and_slices_are_written_as_what_they_show():
    base = torch.arange(12.0).view(3, 4)
    got = round_trip(Payload(row=base[1], column=base[:, 2], turned=base.T))
    assert torch.equal(got["row"], base[1]) and torch.equal(got["column"], base[:, 2])
    assert torch.equal(got["turned"], base.T)


@pytest.mark.parametrize("cut", [0, 3, 10, 40, -1])
def test_truncated_message_is_refused(cut):
    message = Chain().encode(Payload(w=torch.randn(9)))
    with pytest.raises(WireError, match=r"truncated|expected a message|cannot be read"):
        Chain().decode(message[:cut])


def test_any_flipped_bit_and_swapped_words_are_noticed():
    message = Chain().encode(Payload(w=torch.randn(6), n=1))
    for place in range(len(message)):
        altered = bytearray(message)
        altered[place] ^= 1 << place % 8
        with pytest.raises(WireError):
            Chain().decode(bytes(altered))
    swapped = message[:-16] + message[-8:] + message[-16:-8]
    with pytest.raises(WireError, match="altered"):
        Chain().decode(swapped)


def test_longer_message_is_refused():
    with pytest.raises(WireError):
        Chain().decode(Chain().encode(Payload(w=torch.randn(6))) + b"\0")


def test_pickles_are_never_loaded(tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "owned"), "w"))

    with pytest.raises(WireError):
        Chain().decode(pickle.dumps(Evil()))
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("value", [[1, 2], None, object(), (torch.zeros(1),)])
def test_what_is_no_entry_is_named(value):
    with pytest.raises(UserError, match=r"'a/b' is a .*takes tensors"):
        Payload(a={"b": value})


def test_complex_tensors_and_huge_integers_are_refused():
    with pytest.raises(UserError, match="'z' has dtype torch.complex64"):
        Chain().encode(Payload(z=torch.zeros(1, dtype=torch.complex64)))
    with pytest.raises(UserError, match="must fit 64 bits"):
        Chain().encode(Payload(n=2**64))


def test_missing_entry_names_the_client_and_what_it_sent():
    reply = Reply(7, Payload(model={}, num_samples=3))
    with pytest.raises(
        UserError, match=r"reply of client 7 lacks 'num_sample'.*Did you mean 'num_samples'\?"
    ):
        reply["num_sample"]


def test_state_trees_survive_with_their_types():
    tree = {
        "a": torch.arange(3),
        1: [1.5, (None, "x", {"t": torch.zeros(2, dtype=torch.bfloat16)})],
        "empty": {},
    }
    again = trees.from_bytes(trees.to_bytes(tree))
    assert torch.equal(again["a"], tree["a"]) and again[1][0] == 1.5 and again["empty"] == {}
    assert isinstance(again[1][1], tuple) and again[1][1][2]["t"].dtype == torch.bfloat16
