"""The generated sets, written once for all tests of this paper."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.projects.recit.real_sets import write_all


@pytest.fixture(scope="session")
def real_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("recit-data")
    write_all(root)
    return root
