"""Pages opened in a real browser. Without one they are skipped, unless PAPERWORKS_REQUIRE_BROWSER=1."""

import os
import re
import shutil
import subprocess

import pytest

from shared.reproduction import report
from shared.reproduction.recipe import Claim, Entry, Selector
from shared.reproduction.record import build_record
from shared.reproduction.synthetic import synthetic_results

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]


@pytest.fixture(scope="module")
def browser():
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        assert os.environ.get("PAPERWORKS_REQUIRE_BROWSER") != "1", f"none of {', '.join(NAMES)} is installed"
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    return found


def browse(browser, folder, *arguments):
    profile = folder / "profile"
    return subprocess.run(
        [browser, *FLAGS, f"--user-data-dir={profile}", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout


@pytest.fixture
def page(tmp_path):
    values = {
        (row, column): {seed: 70 + 5 * place + offset + 0.1 * seed * (offset + 1) for seed in range(5)}
        for offset, row in enumerate("ab")
        for place, column in enumerate("xyz")
    }
    sides = Selector("b", "x"), Selector("a", "x")
    results = synthetic_results(
        tmp_path / "s",
        values,
        claims=[
            Claim("up", "b is above a", "section 3", "difference", "> 0", *sides),
            Claim("down", "b is below a", "section 3", "difference", "< 0", *sides),
        ],
        columns={name: Entry(name, name, value=float(place)) for place, name in enumerate("xyz")},
        unit="%",
        title="Accuracy of toys",
    )
    return report.write_all(build_record(results, "command", 0.0, 1.0), results, tmp_path / "out")["html"]


def test_the_page_opens_in_a_browser(browser, page, tmp_path):
    dom = browse(browser, tmp_path, "--dump-dom", page.as_uri())
    assert re.search(r"<title>\s*Accuracy of toys", dom)
    assert re.search(r'class="verdict holds">\s*holds\s*<', dom)
    assert re.search(r'class="verdict fails">\s*fails\s*<', dom)
    outside = re.findall(r"<(?!a\b)[^>]*?\s(?:src|href|xlink:href)=[\"'](https?:[^\"']*)", dom)
    assert outside == []


def test_the_page_fits_a_phone_and_paints_in_both_themes(browser, page, tmp_path):
    """A frame of 390 px shows the page without sideways scrolling, and light and dark differ."""
    probe = tmp_path / "probe.html"
    probe.write_text(
        '<iframe id="f" style="width:390px;height:800px;border:0" '
        f'srcdoc="{_quoted(page.read_text())}"></iframe>'
        "<p id=result>waiting</p><script>document.getElementById('f').onload = e => {"
        "const d = e.target.contentDocument.documentElement;"
        "document.getElementById('result').textContent = `width ${d.scrollWidth} of ${d.clientWidth}`}"
        "</script>"
    )
    dom = browse(browser, tmp_path, "--dump-dom", probe.as_uri())
    width, frame = map(int, re.search(r"width (\d+) of (\d+)", dom).groups())
    assert width <= frame == 390
    import matplotlib.image

    brightness = {}
    for theme, number in (("light", 1), ("dark", 0)):
        scheme = f"--blink-settings=preferredColorScheme={number}"
        picture = tmp_path / f"{theme}.png"
        browse(browser, tmp_path, scheme, "--window-size=900,900", f"--screenshot={picture}", page.as_uri())
        brightness[theme] = float(matplotlib.image.imread(picture)[..., :3].mean())
    assert brightness["light"] > 0.85
    assert brightness["dark"] < 0.3


def _quoted(text):
    return text.replace("&", "&amp;").replace('"', "&quot;")
