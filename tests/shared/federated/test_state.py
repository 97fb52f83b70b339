"""Client states: lazy, safe to save, equal in memory and on disk. Bytes: exact and consistent."""

import tracemalloc

import pytest
import torch

from shared.errors import UserError
from shared.federated import wire
from shared.federated.codecs import Chain
from shared.federated.ledger import Ledger
from shared.federated.payload import Payload
from shared.federated.state import ClientStates


@pytest.fixture(params=[False, True], ids=["memory", "disk"])
def states(request, tmp_path):
    return ClientStates(tmp_path / "spill" if request.param else None)


def test_states_appear_on_first_write_and_come_back(states):
    assert states[3] == {} and len(states) == 0
    states[3] = {"c": torch.arange(3.0), "optimizer": {0: [1, (2.5, None)]}}
    assert states.clients() == [3] and states[3]["optimizer"] == {0: [1, (2.5, None)]}
    assert torch.equal(states[3]["c"], torch.arange(3.0))
    states[3] = {}
    assert 3 not in states


def test_what_a_borrower_does_is_not_seen_before_it_is_put_back(states):
    states[1] = {"c": {"w": torch.zeros(2)}}
    borrowed = states[1]
    borrowed["c"]["w"] = torch.ones(2)
    borrowed["new"] = 1
    assert torch.equal(states[1]["c"]["w"], torch.zeros(2)) and "new" not in states[1]


def test_checkpoint_is_safe_and_complete(states, tmp_path):
    for client in (5, 2):
        states[client] = {"c": torch.full((2,), float(client)), "round": client}
    torch.save(states.state_dict(), tmp_path / "s.ckpt")
    again = ClientStates()
    again.load_state_dict(torch.load(tmp_path / "s.ckpt", weights_only=True))
    assert again.digest() == states.digest() and again.clients() == [2, 5]


@pytest.mark.parametrize("value", [object(), {1, 2}, {(1, 2): 3}, torch.nn.Linear(1, 1)])
def test_what_cannot_be_saved_safely_is_named(states, value):
    with pytest.raises(UserError, match=r"state of client 4\['a'\]"):
        states[4] = {"a": value}


def test_a_damaged_file_is_noticed(tmp_path):
    states = ClientStates(tmp_path)
    states[0] = {"c": torch.randn(50)}
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(UserError, match="truncated or altered"):
        _ = states[0]


def test_spilled_states_take_no_memory(tmp_path):
    states = ClientStates(tmp_path)
    states[0] = {"c": torch.randn(10)}
    tracemalloc.start()
    for client in range(50):
        states[client] = {"c": torch.zeros(20_000)}
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(states) == 50 and held < 100_000  # the tensors are 4 MB


def message(**entries):
    return Chain().encode(Payload(**entries))


def test_prompts_of_ten_clients_are_327680_bytes_each_way():
    ledger = Ledger()
    prompt = message(prompt={"global": torch.zeros(16, 512)}, num_samples=8)
    for client in range(10):
        for direction in ("down", "up"):
            ledger.count(prompt, round=0, phase="fit", direction=direction, client=client)
    for direction in ("down", "up"):
        assert ledger.total(direction=direction, name="prompt") == 327_680
    assert ledger.total(name="num_samples") == 20 * 8
    assert ledger.total(header=False) == 2 * 327_680 + 160
    assert ledger.total() == 20 * len(prompt)


def test_every_split_adds_up_to_the_total():
    ledger = Ledger()
    generator = torch.Generator().manual_seed(0)
    lengths = 0
    for round in range(3):
        for client in range(4):
            for phase, direction in (("fit", "up"), ("fit", "down"), ("exchange", "up")):
                size = int(torch.randint(1, 9, (), generator=generator))
                sent = message(model={"w": torch.zeros(size)}, stats={client: torch.zeros(2)})
                lengths += ledger.count(sent, round=round, phase=phase, direction=direction, client=client)
    for key in ("round", "phase", "direction", "client", "name"):
        assert sum(ledger.by(key).values()) == ledger.total() == lengths
    assert sum(ledger.total(client=c, phase="exchange") for c in range(4)) == ledger.total(phase="exchange")
    assert ledger.by("client", round=1, direction="up")[2] == ledger.total(round=1, direction="up", client=2)
    assert ledger.total(direction="up") + ledger.total(direction="down") == ledger.total()
    assert wire.HEADER in ledger.by("name")
    again = Ledger()
    again.load_state_dict(ledger.state_dict())
    assert again.by("name") == ledger.by("name") and again.rows == ledger.rows


def test_equal_layouts_share_their_profile():
    ledger = Ledger()
    for round in range(100):
        sent = message(model={f"layer{i}": torch.zeros(3) for i in range(50)}, n=round)
        ledger.count(sent, round=round, phase="fit", direction="up", client=0)
    assert len(ledger.profiles) == 1 and len(ledger.rows) == 100
