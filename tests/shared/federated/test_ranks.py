"""Two processes of Lightning's DDP share a cohort and reach what one process reaches, states included."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

REPO = Path(__file__).resolve().parents[3]

SCRIPT = """
import sys
from pathlib import Path
import torch
sys.path.insert(0, "tests/shared/federated")
import conftest

out = Path(sys.argv[1])
module, data = conftest.shared_cohort()
trainer = conftest.trainer(devices=2, strategy="ddp")
trainer.fit(module, datamodule=data)
trainer.save_checkpoint(out / "two.ckpt")
metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
torch.save(metrics, out / f"metrics-{trainer.global_rank}.pt")
print(type(module.engine).__name__)
"""


def test_two_ranks_equal_one_process(fed, tmp_path):
    module, data = fed.shared_cohort()
    trainer = fed.trainer()
    trainer.fit(module, datamodule=data)
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    assert type(module.engine).__name__ == "Sequential"

    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPO), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(script), str(tmp_path)]
    done = subprocess.run(command, cwd=REPO, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("Ranks") == 2

    one, two = (torch.load(tmp_path / f"{name}.ckpt", weights_only=True) for name in ("one", "two"))
    assert two["global_step"] == one["global_step"] == 3
    for name, value in one["state_dict"].items():
        assert torch.equal(value, two["state_dict"][name]), name
    assert one["federated"]["ledger"] == two["federated"]["ledger"]
    assert one["federated"]["states"].keys() == two["federated"]["states"].keys()
    for client, state in one["federated"]["states"].items():
        for name, value in state["control"].items():
            assert torch.equal(value, two["federated"]["states"][client]["control"][name])
    ranks = [torch.load(tmp_path / f"metrics-{rank}.pt", weights_only=True) for rank in (0, 1)]
    alone = {name: float(value) for name, value in trainer.callback_metrics.items()}
    assert ranks[0] == ranks[1] == pytest.approx(alone)
