"""What a real federation needs on disk: the Flower app of a paper's run, and certificates and keys.

    python scripts/flower_app.py app fedmud --config configs/fedmud/fmnist.yaml --out deploy/app
    python scripts/flower_app.py keys --host fl.example.org --nodes 3 --out deploy/keys

docs/federated.md, section "Flower", has every command from here to a finished run.
"""

from __future__ import annotations

import argparse
import datetime
import ipaddress
import json
import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent.parent), str(Path(__file__).parent)]

from shared.errors import UserError, fail_cleanly

PYPROJECT = """\
# A Flower app: `flwr run` sends this folder to the SuperLink, and it to the SuperNodes. The code is the
# package paperworks that each machine has installed; the run's whole configuration is below.
[project]
name = "{name}"
version = "1.0.0"
description = "{paper}, run by paperworks"
license = "MIT"
dependencies = []

[tool.flwr.app]
publisher = "paperworks"

[tool.flwr.app.components]
serverapp = "app:server"
clientapp = "app:client"

[tool.flwr.app.config]
paper = "{paper}"
run = "{run}"                # names the nodes' states; keep it to resume, change it to start anew
out = "{out}"                # the server's folder of this run
timeout = {timeout}          # seconds a call waits for its replies
wait = {wait}             # seconds the first call waits for all nodes
on-bad-reply = "exclude"     # or "raise": a lost or bad client ends the run
config = {config}
"""
APP = '''"""The apps of this run; see `shared.federated.engines.flower.app`."""

from shared.federated.engines.flower.app import client, server

__all__ = ["client", "server"]
'''
CONNECTION = """\
[superlink]
default = "deployment"

[superlink.deployment]
address = "{host}:{port}"
root-certificates = "{authority}"
"""
YEARS = 2


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="flower_app.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, dest="command", metavar="app|keys")
    app = commands.add_parser("app", help="write the Flower app of one cell of a table")
    app.add_argument("paper", metavar="PAPER", help="a folder of projects/")
    app.add_argument("overrides", metavar="key=value", nargs="*", help="override the configuration")
    app.add_argument(
        "--config",
        type=Path,
        required=True,
        metavar="FILE",
        help="a table of configs/PAPER/, or a config.yaml",
    )
    app.add_argument("--profile", help="the table's scale (default: laptop where the table has it)")
    app.add_argument("--row", help="the table's row (default: its first)")
    app.add_argument("--column", help="the table's column (default: its first)")
    app.add_argument("--run", help="name of the run (default: the paper's)")
    app.add_argument(
        "--folder", default="", help="the server's folder of the run (default: in its run store)"
    )
    app.add_argument("--timeout", type=float, default=600.0, help="seconds a call waits (default: 600)")
    app.add_argument("--wait", type=float, default=120.0, help="seconds to wait for all nodes (default: 120)")
    keys = commands.add_parser("keys", help="write a certificate authority, a server's and the nodes' keys")
    keys.add_argument(
        "--host", action="append", required=True, help="name or address of the SuperLink; may be repeated"
    )
    keys.add_argument("--port", type=int, default=8000, help="of the SuperLink (default: 8000)")
    keys.add_argument("--nodes", type=int, required=True, help="how many SuperNodes")
    for command in (app, keys):
        command.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="a new folder")
    options, more = parser.parse_known_args(sys.argv[1:] if arguments is None else arguments)
    if options.command == "app":
        options.overrides += [word for word in more if "=" in word and not word.startswith("-")]
        more = [word for word in more if word not in options.overrides]
    if more:
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    if options.out.exists() and any(options.out.iterdir()):
        raise UserError(f"expected a new or empty folder, {options.out} is not empty: nothing was written.")
    if options.command == "app":
        write_app(options)
        print(f"{options.out} is the Flower app of {options.paper}; run it with: flwr run {options.out}")
    else:
        write_keys(options.out, options.host, options.port, options.nodes)
        print(
            f"{options.out} holds ca.crt, server.crt, server.key, config.toml and {options.nodes} key pairs"
        )
    return 0


def write_app(options: argparse.Namespace) -> None:
    """The app's folder, with the composed configuration of the cell in it."""
    from train import composed

    from shared.reproduction.recipe import check_paper
    from shared.training.config import redact, resolved

    check_paper(options.paper)
    run = options.run or options.paper.replace("_", "-")
    if not run.replace("-", "").replace("_", "").isalnum():
        raise UserError(f"--run takes letters, digits, '-' and '_', found '{run}'.")
    options.overrides = ["runtime.progress=false", *options.overrides]
    config, _ = composed(options)
    content = json.dumps(redact(resolved(config)))
    options.out.mkdir(parents=True, exist_ok=True)
    text = PYPROJECT.format(
        name=options.paper.replace("_", "-"),
        paper=options.paper,
        run=run,
        out=options.folder,
        timeout=float(options.timeout),
        wait=float(options.wait),
        config=json.dumps(content),  # JSON's quoting of a string is TOML's too
    )
    (options.out / "pyproject.toml").write_text(text)
    (options.out / "app.py").write_text(APP)


def write_keys(folder: Path, hosts: list[str], port: int, nodes: int) -> None:
    """ca.crt; server.crt and server.key for `hosts`; node-0 and node-0.pub, ...; config.toml for `flwr`.

    The authority's own key is not kept: make a new set rather than another certificate.
    """
    from shared.federated.engines import flower

    flower.require()
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def certificate(subject: str, key: Any, signer: Any) -> x509.CertificateBuilder:
        start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=5)
        return (
            x509.CertificateBuilder()
            .subject_name(name(subject))
            .issuer_name(name("paperworks authority"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(start + datetime.timedelta(days=365 * YEARS))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
            )
        )

    def usage(**wanted: bool) -> x509.KeyUsage:
        names = (
            *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
            *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
        )
        return x509.KeyUsage(**{name: wanted.get(name, False) for name in names})

    def secret(path: Path, content: bytes) -> None:
        path.touch(mode=0o600)
        path.write_bytes(content)

    folder.mkdir(parents=True, exist_ok=True)
    authority, server = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    own = (
        certificate("paperworks authority", authority, authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage(key_cert_sign=True, crl_sign=True), critical=True)
        .sign(authority, hashes.SHA384())
    )
    alternatives = [_alternative(host, x509) for host in dict.fromkeys([*hosts, "localhost", "127.0.0.1"])]
    served = (
        certificate(hosts[0], server, authority)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage(digital_signature=True, key_agreement=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .sign(authority, hashes.SHA384())
    )
    (folder / "ca.crt").write_bytes(own.public_bytes(Encoding.PEM))
    (folder / "server.crt").write_bytes(served.public_bytes(Encoding.PEM))
    secret(folder / "server.key", server.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    for node in range(nodes):
        key = ec.generate_private_key(ec.SECP384R1())
        secret(
            folder / f"node-{node}", key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        )
        public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        (folder / f"node-{node}.pub").write_bytes(public + b"\n")
    connection = CONNECTION.format(host=hosts[0], port=port, authority=(folder / "ca.crt").absolute())
    (folder / "config.toml").write_text(connection)


def _alternative(host: str, x509: Any) -> Any:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


if __name__ == "__main__":
    sys.exit(fail_cleanly(main))
