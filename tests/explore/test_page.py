"""The page in a real browser: live with a server, in one file without, and inside a report."""

from __future__ import annotations

import json
import threading
import urllib.parse

import pytest

import browser
from explored_models import TEXT, build
from headcount import remove, report, view
from headcount.explore import Answers, ExploreServer, Findings, Inspector

pytestmark = pytest.mark.skipif(
    not (browser.CHROMIUM and browser.DRIVER), reason="no chromium and chromium-driver are installed"
)
NASTY = "<img src=x onerror=\"document.title='broken'\"></script><script>document.title='broken'</script> \u202e dog"
HEADS = [f"encoder.{layer}.{index}" for layer in range(2) for index in range(4)]
RUNS = [
    {"command": "importance", "method": "gradient", "order": HEADS, "order_by": "score"}
    | {"heads": [{"head": head, "score": place / 8} for place, head in enumerate(HEADS)]},
    {"command": "roles", "heads": [{"head": "encoder.0.2", "role": "rare"}, {"head": "encoder.1.1", "role": "rare"}]},
    {"command": "prune", "removed": ["encoder.0.0", "encoder_ffn.1.0-9"], "left": 7, "before": 0.9},
]
OFF = "return [...document.querySelectorAll('.cell.off')].map(cell => cell.dataset.head ?? cell.dataset.unit)"
LOSS = "return document.querySelector('.measure .now, .measure .whole:last-of-type')?.dataset.value ?? null"
CAME = "return Number(document.querySelector('.measure .now')?.dataset.value) === arguments[0]"
LOOKED = "return document.querySelector('.lines svg')?.getAttribute('aria-label').includes(arguments[0])"
NOW = "return document.querySelector('.measure .now')?.dataset.value ?? null"
READY = "return document.querySelectorAll('.cell[data-value]').length === 8 && !document.querySelector('.busy')"


class Live:
    """A server of a tiny classifier in this process."""

    def __init__(self):
        self.model, self.tokenizer, _ = build("classifier")
        smaller = remove(self.model, ["encoder.0.0"])
        self.inspector = Inspector(self.model, self.tokenizer, name=NASTY, pruned=smaller)
        examples = [{"text": "a dog", "pair": None, "label": "fine"}, {"text": NASTY, "pair": "the cat", "label": None}]
        content = {"live": True, **self.inspector.facts(), "findings": Findings(self.model, RUNS).to_json()}
        content |= {"examples": len(examples), "text": TEXT[0], "pair": None}
        self.server = ExploreServer(Answers(self.inspector, examples), content)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self.thread.start()

    def at(self, **state):
        return self.server.address + ("#" + urllib.parse.urlencode(state) if state else "")

    def loss(self, *off, text=TEXT):
        self.inspector.reading(text)
        return self.inspector.answer(text, off)["loss"]

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture(scope="module")
def live():
    one = Live()
    yield one
    if one.thread.is_alive():
        one.stop()


@pytest.fixture(scope="module")
def tab():
    with browser.chromium() as opened:
        yield opened


@pytest.fixture
def page(tab, live):
    """The live page with a text, at the size of a desk, without the mouse on it."""
    tab.size(1280)
    tab.scheme("light")
    tab.devtools("Input.dispatchMouseEvent", type="mouseMoved", x=1, y=1)
    fresh(tab, live.at(text=TEXT[0]))
    return tab


def fresh(tab, address):
    tab.open("about:blank")
    tab.open(address)
    tab.wait(READY)


def test_the_numbers_are_the_engines(page, live):
    effects = live.inspector.effects(TEXT)["effects"]
    shown = page.run(
        "const cells = [...document.querySelectorAll('.cell[data-head]')];"
        "return Object.fromEntries(cells.map(cell => [cell.dataset.head, Number(cell.dataset.value)]));"
    )
    assert shown == effects
    assert float(page.run(LOSS)) == live.loss()
    page.click('[data-head="encoder.1.2"]')
    assert float(page.wait(NOW)) == live.loss("encoder.1.2")
    bars = page.run("return [...document.querySelectorAll('.bars i.now')].map(bar => Number(bar.dataset.value))")
    assert bars == [bar["share"] for bar in live.inspector.answer(TEXT, ["encoder.1.2"])["bars"]]
    assert page.run("return Number(document.querySelector('[data-effect]').dataset.effect)") == effects["encoder.1.2"]
    assert page.complaints() == []


def test_typing_reads_another_text(page, live):
    page.click("textarea")
    page.run("document.querySelector('textarea').select()")
    page.type("the cat sleeps")
    page.press("Enter")
    other = ("the cat sleeps", None)
    page.wait(f"return ({LOSS.removeprefix('return ')}) === String(arguments[0])", live.loss(text=other))
    page.wait(READY)
    assert "text=the+cat+sleeps" in page.run("return location.hash")
    names = "return [...document.querySelectorAll('.lines .token[data-row] text')].map(one => one.textContent)"
    tokens = page.run(names)
    assert tokens == ["<s>", "the", "cat", "sleeps", "</s>"]


def test_clicking_rows_sets_undo_and_redo(page, live):
    page.click('[data-head="encoder.0.3"]')
    assert page.run(OFF) == ["encoder.0.3"]
    page.click('[data-row="encoder.1"]')
    assert page.run(OFF) == ["encoder.0.3", *HEADS[4:]]
    page.click('[data-unit="encoder_ffn.0"]')
    page.wait(CAME, live.loss("encoder.0.3", *HEADS[4:], "encoder_ffn.0"))
    for expected in (["encoder.0.3", *HEADS[4:]], ["encoder.0.3"], []):
        page.click('[aria-label="Undo"]')
        assert page.run(OFF) == expected
    page.click('[aria-label="Redo"]')
    assert page.run(OFF) == ["encoder.0.3"]
    page.click('[data-set="0"]')
    assert page.run(OFF) == ["encoder.0.2", "encoder.1.1"]  # the rare ones
    page.click('[data-set="1"]')
    assert page.run(OFF) == ["encoder.0.0", "encoder_ffn.1"]  # what prune removed: some neurons of this layer
    assert "encoder_ffn.1.0-9" in page.run("return location.hash")
    page.run("document.querySelector('[type=number]').value = 25")
    page.click("[data-least]")
    assert page.run(OFF) == ["encoder.0.0", "encoder.0.1"]  # a quarter of 8, by importance
    assert page.complaints() == []


def test_everything_by_keyboard(page, live):
    page.run("document.querySelector('.cell[tabindex=\"0\"]').focus()")
    for key in ("ArrowRight", "ArrowDown", "ArrowRight", "ArrowLeft"):
        page.press(key)
    assert page.run("return document.activeElement.dataset.head") == "encoder.1.1"
    page.wait(LOOKED, "encoder.1.1")
    assert page.run("return document.querySelector('.attention h2').textContent") == "encoder.1.1"
    page.press(" ")
    assert page.run(OFF) == ["encoder.1.1"]
    page.press("r")
    assert page.run(OFF) == HEADS[4:]
    page.press("f")
    assert page.run(OFF) == [*HEADS[4:], "encoder_ffn.1"]
    page.press("u")
    page.press("z", modifiers=2)
    assert page.run(OFF) == ["encoder.1.1"]
    page.press("y")
    assert page.run(OFF) == HEADS[4:]
    page.press("a")
    assert page.run(OFF) == []
    page.press("n")
    page.wait("return document.querySelector('textarea').value === 'a dog'")
    page.press("/")
    assert page.run("return document.activeElement.tagName") == "TEXTAREA"
    page.type("r")  # a letter, not a command
    assert page.run(OFF) == []


def test_pointing_shows_attention_of_that_head_only(page, live):
    asked = page.run("return performance.getEntriesByType('resource').length")
    page.point_at('[data-head="encoder.1.3"]')
    page.wait(LOOKED, "encoder.1.3")
    assert page.run(OFF) == []
    assert page.run("return performance.getEntriesByType('resource').length") == asked + 1
    told = live.inspector.attention(TEXT, "encoder.1.3")
    assert page.run("return document.querySelectorAll('.lines .token[data-row]').length") == told["rows"]
    page.point_at('.lines .token[data-row="2"]')
    shares = page.run("return [...document.querySelectorAll('.lines .share')].map(one => one.textContent)")
    assert shares
    x, y = page.run("const box = document.querySelector('canvas').getBoundingClientRect(); return [box.x, box.y]")
    page.devtools("Input.dispatchMouseEvent", type="mouseMoved", x=x + 4, y=y + 4)
    assert page.run("return document.querySelector('.heat .note').textContent").startswith("<s> → <s>: ")
    reds = page.run(
        "const canvas = document.querySelector('canvas'), paint = canvas.getContext('2d');"
        "const pixels = paint.getImageData(0, 0, canvas.width, canvas.height).data;"
        "return new Set(pixels.filter((_, place) => place % 4 === 0)).size;"
    )
    assert reds > 3


def test_an_address_can_be_shared_and_edited(tab, live, page):
    state = {"text": "the dog", "off": "encoder.0.1,encoder_ffn.0", "head": "encoder.1.3", "colour": "role"}
    fresh_address = live.at(**state)
    tab.open("about:blank")
    tab.open(fresh_address)
    assert float(tab.wait(NOW)) == live.loss("encoder.0.1", "encoder_ffn.0", text=("the dog", None))
    assert tab.run(OFF) == ["encoder.0.1", "encoder_ffn.0"]
    assert tab.run("return document.querySelector('.attention h2').textContent") == "encoder.1.3"
    assert tab.run("return document.querySelector('.bar select').value") == "role"
    tab.run("location.hash = '#text=a+cat&off=encoder.1.0,encoder.7.7,nonsense'")
    tab.wait("return document.querySelector('textarea').value === 'a cat'")
    tab.wait(NOW)
    assert tab.run(OFF) == ["encoder.1.0"]


def test_two_tabs_do_not_disturb_each_other(tab, live, page):
    first = tab.ask("GET", "window")
    page.click('[data-head="encoder.0.1"]')
    page.wait(NOW)
    second = tab.new_tab()
    tab.turn_to(second)
    fresh(tab, live.at(text="the dog"))
    assert tab.run(OFF) == []
    tab.click('[data-head="encoder.1.2"]')
    assert float(tab.wait(NOW)) == live.loss("encoder.1.2", text=("the dog", None))
    tab.ask("DELETE", "window")
    tab.turn_to(first)
    assert tab.run(OFF) == ["encoder.0.1"]
    assert float(tab.run(NOW)) == live.loss("encoder.0.1")


def test_the_pruned_model_beside_the_original(page, live):
    page.click(".compare input")
    cut = page.wait("return document.querySelector('.measure .cut')?.dataset.value")
    assert float(cut) == live.inspector.pruned(TEXT)["loss"]
    assert float(cut) == pytest.approx(live.loss("encoder.0.0"), abs=1e-5)
    assert "pruned=1" in page.run("return location.hash")


def test_examples_with_markup_stay_text(page, live):
    page.click('[aria-label="Next example"]')
    page.wait("return document.querySelector('textarea').value === 'a dog'")
    page.wait("return document.querySelector('.answer h2').textContent.includes('label: fine')")
    page.click('[aria-label="Next example"]')
    page.wait("return document.querySelectorAll('textarea')[1].value === 'the cat'")
    page.wait(READY)
    assert page.run("return document.title").endswith("heads at work")
    assert page.run("return document.querySelectorAll('img, iframe, object').length") == 0
    assert page.complaints() == []


def test_a_phone_needs_no_sideways_scrolling(page):
    for scheme in ("light", "dark"):
        page.scheme(scheme)
        for width in (340, 390):
            page.size(width, 800)
            assert page.run("return document.documentElement.scrollWidth") == width
            box = page.run(
                "const {width, height} = document.querySelector('.cell').getBoundingClientRect();"
                "return [width, height];"
            )
            assert min(box) > 15
    assert page.run("return getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 29)"


def test_a_tap_turns_a_head_off_and_shows_it(page, live):
    page.size(390, 800)
    x, y = page.run(
        "const cell = document.querySelector('[data-head=\"encoder.1.3\"]');"
        "cell.scrollIntoView({block: 'center'});"
        "const box = cell.getBoundingClientRect(); return [box.x + 8, box.y + 8];"
    )
    page.devtools("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": x, "y": y}])
    page.devtools("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    page.wait(CAME, live.loss("encoder.1.3"))
    assert page.run(OFF) == ["encoder.1.3"]
    page.wait(LOOKED, "encoder.1.3")


def test_a_static_page_needs_no_server(tab, tmp_path):
    model, tokenizer, _ = build("classifier")
    made = view(model, tokenizer, [TEXT[0], NASTY], runs=RUNS, name=NASTY)
    tab.size(1280)
    tab.open(made.save(tmp_path / "view.html"))
    tab.wait(READY)
    inspector = Inspector(model, tokenizer)
    inspector.reading(TEXT)
    tab.click('[data-row="encoder.1"]')
    assert float(tab.wait(NOW)) == inspector.answer(TEXT, HEADS[4:])["loss"]
    tab.press("a")
    tab.click("[data-least]")  # 40% of 8 by importance
    assert float(tab.wait(NOW)) == inspector.answer(TEXT, HEADS[:3])["loss"]
    tab.press("a")
    for head in ("encoder.0.1", "encoder.1.2"):
        tab.click(f'[data-head="{head}"]')
    assert "headcount explore" in tab.wait("return document.querySelector('.answer .notice')?.textContent")
    tab.point_at('[data-head="encoder.0.3"]')
    tab.wait(LOOKED, "encoder.0.3")
    tab.press("n")
    tab.wait("return document.querySelector('textarea').value.startsWith('<img')")
    assert "example=1" in tab.run("return location.hash")
    assert tab.run("return performance.getEntriesByType('resource').length") == 0
    assert tab.complaints() == []


def test_a_notebook_shows_the_page_in_a_frame_that_reaches_nothing(tab, tmp_path):
    model, tokenizer, _ = build("classifier")
    made = view(model, tokenizer, TEXT[0])
    (tmp_path / "notebook.html").write_text(f"<!doctype html><title>notebook</title>{made._repr_html_()}")
    tab.size(1280)
    tab.open(tmp_path / "notebook.html")
    tab.ask("POST", "frame", {"id": 0})
    tab.wait(READY)
    tab.run("document.querySelector('[data-head=\"encoder.1.2\"]').click()")
    assert float(tab.wait(NOW)) == made.content["texts"][0]["answers"]["encoder.1.2"]["loss"]
    assert tab.run("try { return String(parent.document.title) } catch { return 'refused' }") == "refused"
    tab.ask("POST", "frame", {"id": None})


@pytest.mark.parametrize("kind", ["translator", "causal", "masked", "embedding", "score", "tagger", "answering"])
def test_every_kind_of_model_has_its_answer(tab, tmp_path, kind):
    explored = build(kind)
    made = view(explored.model, explored.tokenizer, explored.text[0], pair=explored.text[1])
    tab.size(1280)
    tab.open(made.save(tmp_path / "view.html"))
    tab.wait("return document.querySelectorAll('.cell[data-value]').length > 3")
    read = made.content["texts"][0]
    head = max(read["effects"], key=lambda one: abs(read["effects"][one]))
    tab.click(f'[data-head="{head}"]')
    assert float(tab.wait(NOW)) == read["answers"][head]["loss"]
    if "written" in read["answer"]:
        texts = tab.run("return [...document.querySelectorAll('.written .text p')].map(one => one.textContent)")
        assert texts == [read["answer"]["written"], read["answers"][head]["written"]]
        assert tab.run("return document.querySelectorAll('.step').length") == len(read["steps"])
    assert tab.complaints() == []


def test_a_report_embeds_views(tab, tmp_path):
    model, tokenizer, _ = build("classifier")
    content = view(model, tokenizer, TEXT[0], name="models/toy").content
    run = {"command": "view", "model": "models/toy", "view": json.loads(json.dumps(content))}
    damaged = {"command": "view", "model": "models/toy", "view": {"live": False, "sites": NASTY}}
    tab.size(1200)
    tab.open(report([run, damaged, {**RUNS[0], "model": "models/toy"}], tmp_path / "report.html"))
    tab.wait("return document.querySelectorAll('.explorer .cell[data-value]').length === 8")
    tab.click('.explorer [data-head="encoder.1.2"]')
    assert float(tab.wait(NOW)) == content["texts"][0]["answers"]["encoder.1.2"]["loss"]
    assert "damaged" in tab.run("return document.querySelectorAll('.explorer')[1].textContent")
    assert tab.run("return location.hash") == ""
    tab.size(390)
    assert tab.run("return document.documentElement.scrollWidth") == 390
    assert tab.complaints() == []


def test_a_server_that_goes_away_is_said_and_found_again(tab):
    own = Live()
    tab.size(1280)
    fresh(tab, own.at(text=TEXT[0]))
    own.stop()
    tab.click('[data-head="encoder.1.2"]')
    tab.wait("return document.querySelector('.notice.gone:not([hidden])')")
    assert tab.run(OFF) == ["encoder.1.2"]
    again = Live.__new__(Live)
    again.__dict__.update(own.__dict__)
    again.server = ExploreServer(Answers(own.inspector), {"live": True, "model": "m"}, port=own.server.server_port)
    again.server.token = own.server.token
    again.thread = threading.Thread(target=again.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    again.thread.start()
    tab.click(".notice button")
    assert float(tab.wait(NOW)) == own.loss("encoder.1.2")
    assert tab.run("return document.querySelector('.notice').hidden")
    again.stop()
