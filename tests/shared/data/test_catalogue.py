from __future__ import annotations

import re
from pathlib import Path

import pytest

from shared.data import guide
from shared.data.catalogue import embedded_sets, real_sets
from shared.data.entries import EmbeddedSet, RealSet, load

HEX = re.compile(r"[0-9a-f]{64}")
NEEDED = {"fashion-mnist", "furniture", "smollm2", "minilm", "efficientnet-lite0", "movie-sentences", "brown"}
NEEDED |= {"movielens-100k", "open-bandit", "skimage-photos", "vit-s", "stamps", "glove-50d", "emoji-google"}


def test_embedded_entries_are_complete() -> None:
    items = embedded_sets()
    assert items.keys() >= NEEDED
    for name, item in items.items():
        assert item.name == name
        for digest in (item.archive_sha256, item.key_sha256, item.contents_sha256):
            assert HEX.fullmatch(digest), name
        assert 0 < item.bytes < 200_000_000 and 0 < item.size < 200_000_000
        assert item.prefix.endswith("/") and not item.prefix.startswith("/") and item.keep
        assert all(other.url.startswith("http") for other in item.alternatives)
        assert all(other.url.endswith("/") for other in item.alternatives if other.files)
        assert item.title and item.licence and item.layout and item.serves and item.version in item.source


def test_real_entries_are_complete() -> None:
    assert not embedded_sets().keys() & real_sets().keys()
    for name, item in real_sets().items():
        assert item.name == name and item.papers and item.expect and item.licence, name
        assert item.get.endswith("."), name
        for pattern in "|".join(item.expect).split("|"):
            assert pattern == pattern.strip() and not pattern.startswith("/") and ".." not in pattern, name
        assert len(set(item.expect)) == len(item.expect)


def test_no_address_of_a_registry() -> None:
    folder = Path(guide.__file__).parent
    for path in [*folder.glob("*.py"), *folder.glob("*.yaml")]:
        assert not re.search(
            r"py" r"pi\.org|pythonhosted|debian\.org|npm" r"js\.(org|com)", path.read_text("utf-8")
        )


def test_a_mistyped_key_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("a: {titel: x}")
    with pytest.raises(ValueError, match="a: unknown key 'titel'"):
        load(file, RealSet)
    file.write_text("a: {registry: ftp}")
    with pytest.raises(ValueError, match="registry takes"):
        load(file, EmbeddedSet)


def test_the_page_lists_the_whole_catalogue() -> None:
    if not guide.PAGE.exists():
        pytest.skip("this copy has no docs/real_data.md")
    text = guide.PAGE.read_text("utf-8")
    assert guide.filled(text) == text, "write it anew with: python -m shared.data.guide"
    for item in embedded_sets().values():
        assert f"| {item.name} |" in text
    for item in real_sets().values():
        assert f"### {item.name}\n" in text
        for paper in item.papers:
            assert re.search(rf"\| `{paper}` \|.*#{item.name}\)", text)
