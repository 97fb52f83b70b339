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
from lightning.pytorch import Trainer
from shared.federated.algorithms.scaffold import Scaffold
from shared.federated.sampling import uniform
sys.path.insert(0, "tests/shared/federated")
from conftest import classifier, federation, samples

devices, out = int(sys.argv[1]), Path(sys.argv[2])
data = federation((24, 16, 24, 8, 20), rounds=3, sampler=uniform(5, 3, seed=1), test=samples(40),
                  client_test=(samples(92), federation((24, 16, 24, 8, 20)).partition),
                  dropouts=lambda client, round: (client, round) == (2, 1))
module = Scaffold(classifier(dropout=0.3), targets=("received",))
trainer = Trainer(accelerator="cpu", devices=devices, strategy="ddp" if devices > 1 else "auto", max_epochs=1,
                  logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False)
trainer.fit(module, datamodule=data)
trainer.save_checkpoint(out / f"{devices}.ckpt")
torch.save({k: float(v) for k, v in trainer.callback_metrics.items()}, out / f"{devices}-{trainer.global_rank}.pt")
print("shares", type(module.engine).__name__)
"""


def launch(devices, folder):
    script = folder / "script.py"
    script.write_text(SCRIPT)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPO), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, str(script), str(devices), str(folder)],
        cwd=REPO,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_two_ranks_equal_one_process(tmp_path):
    assert "shares Sequential" in launch(1, tmp_path)
    assert "shares Ranks" in launch(2, tmp_path)
    one, two = (torch.load(tmp_path / f"{n}.ckpt", weights_only=True) for n in (1, 2))
    assert two["global_step"] == one["global_step"] == 3
    for name, value in one["state_dict"].items():
        assert torch.equal(value, two["state_dict"][name]), name
    assert one["federated"]["ledger"] == two["federated"]["ledger"]
    assert one["federated"]["states"].keys() == two["federated"]["states"].keys()
    for client, state in one["federated"]["states"].items():
        for name, value in state["control"].items():
            assert torch.equal(value, two["federated"]["states"][client]["control"][name])
    metrics = [torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("1-0", "2-0", "2-1")]
    assert metrics[0] == pytest.approx(metrics[1]) and metrics[1] == metrics[2]
