from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shared.data import embedded
from shared.data.catalogue import locate
from shared.errors import UserError


def needs(name: str) -> pytest.MarkDecorator:
    reason = f"not in the cache; get it with: python scripts/download_data.py {name}"
    return pytest.mark.skipif(locate(name) is None, reason=reason)


@needs("fashion-mnist")
@pytest.mark.parametrize(("train", "each"), [(True, 6000), (False, 1000)])
def test_fashion_mnist(train: bool, each: int) -> None:
    images, labels = embedded.fashion_mnist(train)
    assert images.shape == (10 * each, 28, 28) and images.dtype == np.uint8 and images.max() == 255
    assert np.bincount(labels).tolist() == [each] * 10
    means = images.reshape(len(images), -1).mean(1)
    assert (
        means[labels == 2].mean() > 2 * means[labels == 5].mean()
    )  # a pullover fills its square, a sandal not


def test_idx_files(tmp_path: Path) -> None:
    path = tmp_path / "x"
    values = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    head = b"\0\0\x08\x03" + np.array(values.shape, ">u4").tobytes()
    path.write_bytes(head + values.tobytes())
    assert (embedded.read_idx(path) == values).all()
    path.write_bytes(head + values.tobytes()[:-1])
    with pytest.raises(UserError, match=r"expected \[2, 3, 4\] values, found 23 bytes"):
        embedded.read_idx(path)
    path.write_bytes(b"PK\3\4")
    with pytest.raises(UserError, match="expected an IDX file"):
        embedded.read_idx(path)
