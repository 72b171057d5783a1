"""The report in a real browser: charts are drawn, nothing complains, marks answer mouse, touch and keyboard."""

from __future__ import annotations

import pytest

import browser
import made_up_runs as made_up
from headcount import report

pytestmark = pytest.mark.skipif(
    not (browser.CHROMIUM and browser.DRIVER), reason="no chromium and chromium-driver are installed"
)
NASTY = "<img src=x onerror=\"document.title='broken'\"></title><script>document.title='broken'</script>"
CELL = 'svg.chart .mark[data-head="encoder.1.1"]'
TIP = "const tip = document.getElementById('tip'); return tip.hidden ? null : tip.innerText;"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    report(made_up.write_all(root), root / "report.html")
    nasty = made_up.run_json("ablate", model=NASTY)
    nasty["arguments"]["command_line"] = ["ablate", NASTY]
    report(nasty, root / "nasty.html")
    return root


@pytest.fixture(scope="module")
def tab():
    with browser.chromium() as opened:
        yield opened


@pytest.fixture
def page(tab, place):
    """The report, at the size of a desk, without the mouse on it."""
    tab.size(1200)
    tab.scheme("light")
    tab.open(place / "report.html")
    tab.devtools("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    return tab


def test_charts_are_drawn_and_nothing_complains(page):
    sizes = page.run("return [...document.querySelectorAll('svg.chart')].map(e => e.getBoundingClientRect().height)")
    assert len(sizes) == 17
    assert min(sizes) > 40
    fills = page.run(
        "return [...new Set([...document.querySelectorAll('.cell')].map(e => getComputedStyle(e).fill))].length"
    )
    assert fills > 10  # colours have arrived, the policy lets them
    assert page.complaints() == []


def test_pointing_at_a_head_shows_its_numbers(page):
    assert page.run(TIP) is None
    page.point_at(CELL)
    told = page.run(TIP)
    assert told.startswith("encoder.1.1")
    assert "without it: \u22120.0800 accuracy (95% interval \u22120.0900 to \u22120.0700)" in told
    assert "importance (gradient)" in told
    inside = page.run(
        "const box = document.getElementById('tip').getBoundingClientRect();"
        "return box.left >= 0 && box.right <= innerWidth && box.top >= 0 && box.bottom <= innerHeight;"
    )
    assert inside
    same = "return [...document.querySelectorAll('.mark.same')].map(e => e.dataset.head)"
    marked = page.run(same)
    assert len(marked) >= 4  # the same head in every picture
    assert set(marked) == {"encoder.1.1"}
    page.devtools("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    assert page.run(TIP) is None
    assert page.run(same) == []


def test_the_keyboard_walks_through_a_heat_map(page):
    page.run("document.querySelector('svg.chart .mark').focus()")
    assert page.run(TIP).startswith("encoder.0.0")
    for key, head in (("ArrowRight", "encoder.0.1"), ("ArrowDown", "encoder.1.1"), ("ArrowLeft", "encoder.1.0")):
        page.press(key)
        assert page.run(TIP).startswith(head)
    page.press("Escape")
    assert page.run(TIP) is None
    stops = page.run("return [...document.querySelectorAll('svg.chart .mark[tabindex=\"0\"]')].length")
    assert stops == 17  # one for each chart: Tab leads from chart to chart


def test_touch_shows_and_hides(page):
    page.run("document.querySelector(arguments[0]).scrollIntoView({block: 'center'})", CELL)
    middle = "const b = document.querySelector(arguments[0]).getBoundingClientRect(); return [b.x + 9, b.y + 9]"
    x, y = page.run(middle, CELL)
    for place, shown in (((x, y), True), ((3, 3), False)):
        point = [{"x": place[0], "y": place[1]}]
        page.devtools("Input.dispatchTouchEvent", type="touchStart", touchPoints=point)
        page.devtools("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
        assert (page.run(TIP) is not None) == shown


def test_a_phone_needs_no_sideways_scrolling(page):
    for width in (320, 380):
        page.size(width, 800)
        assert page.run("return document.documentElement.scrollWidth") == width
        page.point_at(CELL)
        assert page.run(TIP).startswith("encoder.1.1")
        box = page.run("const b = document.getElementById('tip').getBoundingClientRect(); return [b.left, b.right]")
        assert 0 <= box[0] <= box[1] <= width
        assert page.run("return document.documentElement.scrollWidth") == width


def test_dark_is_dark_and_paper_is_light(page):
    colour = "return getComputedStyle(document.body).backgroundColor"
    assert page.run(colour) == "rgb(255, 255, 255)"
    page.scheme("dark")
    assert page.run(colour) == "rgb(18, 22, 29)"
    neutral = "return getComputedStyle(document.querySelector('.cell.z0')).fill"
    dark = page.run(neutral)
    media = [{"name": "prefers-color-scheme", "value": "dark"}]
    page.devtools("Emulation.setEmulatedMedia", media="print", features=media)
    assert page.run(colour) == "rgb(255, 255, 255)"
    assert page.run(neutral) != dark
    page.devtools("Emulation.setEmulatedMedia", media="")


def test_it_prints(page, tmp_path):
    paper = page.paper(tmp_path / "report.pdf").read_bytes()
    assert paper.startswith(b"%PDF")
    assert 2 <= paper.count(b"/Type /Page\n") <= 12


def test_a_model_name_with_markup_stays_text(tab, place):
    tab.open(place / "nasty.html")
    assert tab.run("return document.querySelector('p.of').textContent") == NASTY
    assert NASTY in tab.run("return document.title")
    assert tab.run("return document.querySelectorAll('img, script, iframe').length") == 1
    assert tab.run("return document.querySelectorAll('svg.chart').length") == 1
    assert tab.complaints() == []


def test_injected_script_would_not_run(tab, place):
    """Even if something had escaped: the policy names the one script that may run."""
    page = (place / "report.html").read_text(encoding="utf-8")
    (place / "worse.html").write_text(page.replace("</main>", "<script>document.title='broken'</script></main>"))
    tab.open(place / "worse.html")
    assert tab.run("return document.title") == "headcount: models/toy"
    assert any("Content Security Policy" in said for said in tab.complaints())
