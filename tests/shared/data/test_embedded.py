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


@needs("movie-sentences")
def test_movie_sentences() -> None:
    texts, scores = embedded.movie_sentences()
    assert len(texts) == len(scores) == 10_605
    assert (scores > 0).sum() == 5_242
    assert -4 <= scores.min() < -3 and 3 < scores.max() <= 4
    assert all(texts) and not any("\t" in text for text in texts)
    bad = [score for text, score in zip(texts, scores, strict=True) if " dull" in text]
    good = [score for text, score in zip(texts, scores, strict=True) if " delightful" in text]
    assert np.mean(bad) < -0.5 < 0.5 < np.mean(good)


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


@needs("brown")
def test_brown() -> None:
    genres = embedded.brown_genres()
    assert len(genres) == 15 and sum(map(len, genres.values())) == 500
    assert len(genres["science_fiction"]) == 6
    news = embedded.brown("news")
    assert len(news) == 4_623
    assert news[0] == (
        "The Fulton County Grand Jury said Friday an investigation of Atlanta's recent primary election "
        'produced "no evidence" that any irregularities took place.'
    )
    assert not any("/nn" in text or "``" in text for genre in genres for text in embedded.brown(genre))
    with pytest.raises(UserError, match="Did you mean 'romance'"):
        embedded.brown("romanc")


@needs("minilm")
def test_minilm_folder() -> None:
    names = {path.name for path in embedded.minilm_dir().iterdir()}
    assert names >= {"config.json", "model.safetensors", "tokenizer.json", "vocab.txt"}


@needs("smollm2")
def test_smollm2_file() -> None:
    path = embedded.smollm2_gguf()
    assert path.stat().st_size == 98_362_432
    with path.open("rb") as file:
        assert file.read(4) == b"GGUF"


@pytest.mark.parametrize(
    ("tagged", "plain"),
    [
        ("The/at jury/nn said/vbd ,/, ``/`` no/at ''/'' ./.", 'The jury said, "no".'),
        ("Was/bedz it/pps (/( 1/2/cd )/) ?/. ?/.", "Was it (1/2)?"),
        ("Allen/np Jr./np ./.", "Allen Jr."),
        ("so/rb ;/. ;/.", "so;"),
    ],
)
def test_plain_text(tagged: str, plain: str) -> None:
    assert embedded.plain_text(tagged) == plain


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
