"""A real deployment on loopback: TLS, node keys, SuperLink and SuperNodes; one node is killed at work."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

REPO = Path(__file__).parent.parent.parent.parent.parent
TOY = (
    "tests/shared/federated/engines/fedtoy/__init__.py",
    "tests/shared/federated/engines/fedtoy/config.py",
    "tests/shared/federated/engines/fedtoy/module.py",
)
TABLE = "tests/shared/federated/engines/fedtoy/main.yaml"
BIN = Path(sys.executable).parent
NODES = 3
needs_flower = pytest.mark.skipif(importlib.util.find_spec("flwr") is None, reason="flwr is not installed")


class Site:
    """A repository with the toy federation, and the processes that work in it, each in a group of its own."""

    def __init__(self, folder: Path) -> None:
        self.root, self.stall = folder / "repo", folder / "stall"
        (self.root / "configs" / "fedtoy").mkdir(parents=True)
        (self.root / "projects" / "fedtoy").mkdir(parents=True)
        self.stall.mkdir()
        (self.root / "projects" / "__init__.py").touch()
        for name in ("shared", "scripts"):
            (self.root / name).symlink_to(REPO / name)
        for name in TOY:
            shutil.copy(REPO / name, self.root / "projects" / "fedtoy")
        shutil.copy(REPO / TABLE, self.root / "configs" / "fedtoy")
        shutil.copy(REPO / "configs" / "base.yaml", self.root / "configs")
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("WANDB", "PAPERWORKS", "FLWR"))},
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(self.root),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PAPERWORKS_RUNS": str(self.root / "runs"),
            "PAPERWORKS_CACHE": str(self.root / "cache"),
            "FLWR_HOME": str(self.root / "keys"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
        }
        self.processes: dict[str, subprocess.Popen] = {}

    def call(self, *command: str) -> str:
        done = subprocess.run(
            command, cwd=self.root, env=self.environment, capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}\n{self.logs()}"
        return done.stdout

    def python(self, script: str, *arguments: str) -> str:
        return self.call(sys.executable, f"scripts/{script}", *arguments)

    def start(self, name: str, *command: str, **environment: str) -> None:
        with (self.root / f"{name}.log").open("w") as log:
            self.processes[name] = subprocess.Popen(
                command,
                cwd=self.root,
                env=self.environment | environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_the_test,
            )

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def until(self, done: Callable[[], bool], what: str, seconds: float = 3600) -> None:
        end = time.monotonic() + seconds
        while not done():
            for name, process in self.processes.items():
                assert process.poll() is None, f"{name} ended\n{self.logs()}"
            assert time.monotonic() < end, f"waited for {what}\n{self.logs()}"
            time.sleep(0.2)

    def logs(self) -> str:
        return "\n".join(f"--- {path.name}\n{path.read_text()[-4000:]}" for path in self.root.glob("*.log"))

    def run(self, name: str, *overrides: str) -> Path:
        """Submit one run; returns its folder, in which metrics.json will appear."""
        out = self.root / "out" / name
        app = self.root / "apps" / name
        self.python(
            "flower_app.py",
            *("app", "fedtoy", "--config", "configs/fedtoy/main.yaml", "--run", name, "--folder", str(out)),
            *("--timeout", "1500", "--wait", "600", "--out", str(app), *overrides),
        )
        self.call("flwr", "run", str(app), "deployment")
        return out

    def reference(self, name: str, *overrides: str) -> Path:
        """The same run by the sequential engine."""
        out = self.root / "reference" / name
        self.python(
            "train.py", "fedtoy", "--config", "configs/fedtoy/main.yaml", "--out", str(out), *overrides
        )
        return out


def _die_with_the_test() -> None:
    """Also when the test is killed; Flower's own children watch their parent."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def weights(run: Path) -> dict[str, torch.Tensor]:
    return torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]


def same(left: Path, right: Path) -> bool:
    ours, theirs = weights(left), weights(right)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    for name in list(site.processes):
        site.kill(name)


def deploy(site: Site) -> None:
    """A SuperLink that admits known nodes alone, over TLS, and its nodes."""
    port = free_port()
    site.python(
        "flower_app.py",
        *("keys", "--host", "127.0.0.1", "--port", str(port), "--nodes", str(NODES), "--out", "keys"),
    )
    tls = ("--ssl-ca-certfile", "keys/ca.crt", "--ssl-certfile", "keys/server.crt")
    site.start(
        "superlink",
        *("flower-superlink", *tls, "--ssl-keyfile", "keys/server.key", "--enable-supernode-auth"),
        *("--disable-runtime-dependency-installation", "--host", "127.0.0.1", "--port", str(port)),
    )
    site.until(lambda: reachable(port), "the SuperLink")
    for node in range(NODES):
        site.call("flwr", "supernode", "register", f"keys/node-{node}.pub", "deployment")
    for node in range(NODES):
        own = {"STALL": str(site.stall)} if node == 2 else {}
        site.start(
            f"node-{node}",
            *("flower-supernode", "--superlink", f"127.0.0.1:{port}", "--root-certificates", "keys/ca.crt"),
            *("--auth-supernode-private-key", f"keys/node-{node}", "--port", str(free_port())),
            *("--node-config", f'partition-id={node} state-dir="{site.root}/states-{node}"'),
            **own,
        )


def reachable(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@needs_flower
@pytest.mark.slow
def test_three_rounds_of_fedavg_over_tls_with_node_keys(site: Site) -> None:
    deploy(site)
    out = site.run("calm", "algorithm=fedavg")
    site.until((out / "metrics.json").exists, "three rounds of FedAvg")
    assert same(out, site.reference("calm", "algorithm=fedavg"))


@needs_flower
@pytest.mark.slow
def test_three_rounds_of_scaffold_and_a_node_that_is_killed_at_work(site: Site) -> None:
    deploy(site)
    (site.stall / "armed").touch()
    out = site.run("storm", "algorithm=scaffold")
    site.until((site.stall / "stalled").exists, "client 2 at work in round 1")
    site.kill("node-2")
    site.until((out / "metrics.json").exists, "the rounds without client 2")  # Flower reports the dead node
    assert same(out, site.reference("storm", "algorithm=scaffold", "lost=1"))
    assert not same(out, site.reference("whole", "algorithm=scaffold"))
    rounds = (out / "artifacts" / "rounds.jsonl").read_text().splitlines()
    assert ['"excluded": {"2":' in line for line in rounds] == [False, True, True]
    states = [sorted(path.name for path in site.root.glob(f"states-{node}/storm/*")) for node in range(NODES)]
    assert states == [["client-0"], ["client-1"], ["client-2"]]  # each at its own site
