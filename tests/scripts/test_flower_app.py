"""Certificates and keys fit each other, the app's folder is one that Flower takes, mistakes are named."""

from __future__ import annotations

import importlib.util
import json
import ssl
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from shared.errors import fail_cleanly

pytest.importorskip("flwr")

from tests.shared.federated.engines.test_flower_deployment import Site

REPO = Path(__file__).parent.parent.parent
SCRIPT = "scripts/flower_app.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = importlib.util.spec_from_file_location("flower_app", REPO / SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_keys_of_a_federation(script: ModuleType, tmp_path: Path) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
    from flwr.cli.supernode.register import try_load_public_key

    out = tmp_path / "keys"
    command = ["keys", "--host", "fl.example.org", "--host", "10.1.2.3", "--port", "9000", "--nodes", "2"]
    assert script.main([*command, "--out", str(out)]) == 0
    authority, server = (
        x509.load_pem_x509_certificate((out / name).read_bytes()) for name in ("ca.crt", "server.crt")
    )
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org", "localhost"]
    assert list(map(str, names.get_values_for_type(x509.IPAddress))) == ["10.1.2.3", "127.0.0.1"]
    context = ssl.create_default_context(cafile=out / "ca.crt")
    context.load_cert_chain(out / "server.crt", out / "server.key")  # the key is the certificate's
    for node in range(2):
        private = load_ssh_private_key((out / f"node-{node}").read_bytes(), None)
        public = load_ssh_public_key((out / f"node-{node}.pub").read_bytes())
        assert private.public_key() == public and public.curve.name == "secp384r1"
        assert try_load_public_key(out / f"node-{node}.pub")  # Flower takes it
        assert (out / f"node-{node}").stat().st_mode & 0o077 == 0
    assert (out / "server.key").stat().st_mode & 0o077 == 0
    connection = tomllib.loads((out / "config.toml").read_text())["superlink"]["deployment"]
    assert connection == {"address": "fl.example.org:9000", "root-certificates": str(out / "ca.crt")}


def test_the_app_of_a_cell(tmp_path: Path) -> None:
    from flwr.cli.build import build_fab_from_disk
    from flwr.cli.config_utils import load_and_validate

    site = Site(tmp_path)
    site.python(
        "flower_app.py",
        *("app", "fedtoy", "--config", "configs/fedtoy/main.yaml", "--row", "scaffold", "--out", "app"),
        *("--run", "try-1", "--timeout", "30", "seed=7"),
    )
    content, warnings = load_and_validate(site.root / "app" / "pyproject.toml")
    assert not warnings and build_fab_from_disk(site.root / "app")
    settings = content["tool"]["flwr"]["app"]["config"]
    assert (settings["paper"], settings["run"], settings["timeout"]) == ("fedtoy", "try-1", 30.0)
    config = json.loads(settings["config"])
    assert config["algorithm"] == "scaffold" and config["seed"] == 7
    code = (
        "import sys, shared.federated.engines.flower.app as app; "
        "assert 'torch' not in sys.modules; "
        f"print(app.composed('fedtoy', {settings['config']!r}) == app.composed('fedtoy', '{{}}'))"
    )
    assert site.call(sys.executable, "-c", code).strip() == "False"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["app", "no_paper", "--config", "x.yaml", "--out", "OUT"], "no_paper"),
        (["keys", "--host", "a", "--nodes", "1", "--out", "FULL"], "is not empty: nothing was written"),
        (["app", "x", "--config", "y", "--out", "OUT", "--rwo", "z"], "unrecognized arguments: --rwo"),
    ],
)
def test_mistakes_are_named(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture, arguments: list[str], words: str
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    places = {"OUT": str(tmp_path / "out"), "FULL": str(tmp_path / "full")}
    try:
        status = fail_cleanly(lambda: script.main([places.get(word, word) for word in arguments]))
    except SystemExit as stop:
        status = stop.code
    assert status == 2 and words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
