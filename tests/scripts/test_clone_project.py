"""The command around `shared.packaging.clone`."""

from pathlib import Path

REPO = Path(__file__).parent.parent.parent


def test_clone_project_says_what_to_do_next_and_refuses(script, toy_root, tmp_path) -> None:
    for name in ("pyproject.toml", "constraints.txt", "LICENSE"):
        (toy_root / name).symlink_to(REPO / name)
    target = tmp_path / "my-idea"
    done = script("clone_project.py", "toy", str(target))
    assert done.returncode == 0, done.stderr
    assert f"cd {target}" in done.stdout and "bash scripts/reproduce.sh toy" in done.stdout
    assert (target / "projects" / "toy" / "module.py").is_file()
    again = script("clone_project.py", "toy", str(target))
    assert again.returncode == 2
    assert "not empty" in again.stderr and "Traceback" not in again.stderr
    assert "PAPER" in script("clone_project.py", "--help").stdout
