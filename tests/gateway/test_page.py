"""The page in a real browser, before a real server."""

import json
from collections.abc import Iterator

import pytest

pytest.importorskip("playwright", reason="the page is tested with playwright")

from browser import CHROMIUM, ChatPage, chromium
from playwright.sync_api import Browser, Route, expect
from test_disconnect import counted, is_idle
from waiting import wait_until

pytestmark = [
    pytest.mark.server,
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium"),
]

TREES = {"temperature": 0, "speculation": "topn", "node_budget": 6, "max_tokens": 60}
ENDLESS = {"temperature": 0, "speculation": "off", "max_tokens": 30000}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def visit(browser, url) -> Iterator[ChatPage]:
    """A fresh visit; whatever the test does, the page stays at home and does not break."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, reduced_motion="reduce")
    visit = ChatPage(context.new_page(), url)
    yield visit
    assert visit.errors == []
    assert [address for address in visit.requests if not address.startswith(url)] == []
    context.close()


@pytest.fixture
def answered(visit) -> ChatPage:
    """A visit with one answer full of trees."""
    visit.set_options(**TREES)
    visit.ask("abcabcabcabc")
    visit.wait_for_end()
    return visit


@pytest.fixture
def endless(visit) -> ChatPage:
    """A visit with an answer that streams until it is stopped; the page alone cannot ask for it."""

    def keep_on(route: Route) -> None:
        body = json.loads(route.request.post_data or "") | {"ignore_eos": True}
        route.continue_(post_data=json.dumps(body))

    visit.page.route("**/v1/chat/completions", keep_on)
    visit.set_options(**ENDLESS)
    visit.ask("abc")
    return visit


def show(visit: ChatPage, number: int) -> None:
    visit.page.locator("#slider").fill(str(number))
    expect(visit.page.locator("#position")).to_have_text(f"{number} of {visit.position[1]}")


def test_an_answer_streams_and_every_round_can_be_seen(answered):
    assert answered.answer
    _, num_rounds = answered.position
    num_tokens = num_nodes = 0
    for number in range(1, num_rounds + 1):
        show(answered, number)
        tokens, nodes = int(answered.figure("Tokens this round")), answered.figure("Nodes")
        drafted = answered.num_pills("accepted") + answered.num_pills("rejected")
        assert answered.num_pills("accepted") + answered.num_pills("bonus") == tokens
        assert (answered.num_pills("anchor"), f"{drafted} of 6") == (1, nodes)
        num_tokens += tokens
        num_nodes += drafted
    assert answered.summary.startswith(f"{num_tokens} tokens · {num_rounds} rounds")
    assert num_nodes > num_rounds / 2
    length = answered.figure("Acceptance length")
    assert f"{float(length):.2f} tokens a round" in answered.summary


def test_the_tree_appears_while_the_answer_streams(endless):
    expect(endless.page.locator("#tree svg")).to_be_visible()
    expect(endless.page.get_by_role("button", name="Stop")).to_be_visible()
    first = endless.position[1]
    assert wait_until(lambda: endless.position[1] > first)
    assert endless.position[0] > first  # it follows
    endless.page.keyboard.press("Escape")
    endless.wait_for_end()


@pytest.fixture
def num_cancelled(server) -> float:
    """Before the test, and after whatever others cancelled has been counted."""
    assert wait_until(lambda: is_idle(server))
    return counted(server, "cancellations_total")


@pytest.mark.parametrize("way", ["Escape", "Stop"])
def test_stopping_cancels_the_request_on_the_server(num_cancelled, endless, server, way):
    expect(endless.page.locator("#tree svg")).to_be_visible()
    if way == "Stop":
        endless.page.get_by_role("button", name="Stop").press("Enter")  # a click waits for frames
    else:
        endless.page.keyboard.press("Escape")
    endless.wait_for_end()
    assert endless.summary.endswith("stopped")
    assert wait_until(lambda: counted(server, "cancellations_total") == num_cancelled + 1)
    assert wait_until(lambda: is_idle(server))


def test_the_replay_obeys_the_keyboard(answered):
    page, (_, last) = answered.page, answered.position
    page.locator("#slider").focus()
    page.keyboard.press("Home")
    expect(page.locator("#position")).to_have_text(f"1 of {last}")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#position")).to_have_text(f"2 of {last}")
    page.locator("#tree").focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#position")).to_have_text(f"1 of {last}")
    page.keyboard.press(" ")
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    expect(page.locator("#position")).to_have_text(f"3 of {last}")
    page.keyboard.press(" ")
    expect(page.get_by_role("button", name="Play")).to_be_visible()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#position")).to_have_text(f"4 of {last}")


def test_the_text_of_the_shown_round_is_marked(answered):
    page = answered.page
    show(answered, 1)
    first = page.locator(".piece.current")
    expect(first).to_have_count(1)
    assert answered.answer.startswith(first.inner_text())
    label = page.locator("#tree svg").get_attribute("aria-label")
    assert label is not None
    assert label.startswith("Round 1: 0 nodes drafted, 0 accepted")


def test_an_earlier_answer_can_be_opened_again(answered):
    before = answered.position[1]
    answered.set_options(max_tokens=3)
    answered.ask("again")
    answered.wait_for_end()
    assert answered.position[1] <= 3
    answered.page.locator(".summary").first.click()
    expect(answered.page.locator("#position")).to_have_text(f"{before} of {before}")


def test_a_refusal_is_shown_and_the_message_given_back(visit):
    visit.set_options(node_budget=999)
    visit.ask("hello")
    banner = visit.page.get_by_role("alert")
    expect(banner).to_contain_text("node_budget")
    expect(visit.page.get_by_label("Message", exact=True)).to_have_value("hello")
    visit.page.get_by_role("button", name="Dismiss").click()
    expect(banner).to_be_hidden()
    visit.set_options(node_budget=4, max_tokens=5)
    visit.page.get_by_role("button", name="Send").click()
    visit.wait_for_end()
    assert "tokens a round" in visit.summary


def test_a_narrow_window_needs_no_sideways_scrolling(answered):
    answered.page.set_viewport_size({"width": 400, "height": 800})
    show(answered, 2)
    assert answered.page.evaluate("document.documentElement.scrollWidth") == 400
    expect(answered.page.locator("#slider")).to_be_visible()


def test_the_theme_can_be_chosen_and_is_remembered(visit):
    page = visit.page

    def ground() -> str:
        return page.evaluate("getComputedStyle(document.body).backgroundColor")

    light = ground()
    page.get_by_role("button", name="Switch to dark colors").click()
    dark = ground()
    page.reload()
    assert ground() == dark != light
    page.emulate_media(color_scheme="dark")
    page.get_by_role("button", name="Switch to light colors").click()
    assert ground() == light


def test_nodes_of_any_tree_stand_apart(visit):
    """Random trees of 40 nodes: no two pills overlap, and children stand right of their parents."""
    nodes = visit.page.evaluate(_LAID_OUT)
    for placed in nodes:
        for index, node in enumerate(placed):
            if index > 0:
                parent = placed[node["parent"]]
                assert node["x"] > parent["x"] + parent["width"]
            for other in placed[:index]:
                beside = abs(node["y"] - other["y"]) >= (node["height"] + other["height"]) / 2
                apart = node["x"] >= other["x"] + other["width"]
                before = other["x"] >= node["x"] + node["width"]
                assert beside or apart or before


_LAID_OUT = """
async () => {
  const { layOut } = await import("/static/tree-layout.js");
  const trees = [];
  for (let tree = 0; tree < 20; tree++) {
    const parents = [-1], texts = ["a"];
    for (let node = 1; node <= 40; node++) {
      parents.push(Math.floor(Math.random() * node));
      texts.push("x".repeat(1 + Math.floor(Math.random() * 20)));
    }
    const survival = parents.map(() => Math.random());
    const accepted = [parents.indexOf(0)];
    const bonus = { token_id: 1, text: "b" };
    trees.push(layOut({ parents, texts, survival, accepted, bonus }).nodes);
  }
  return trees;
}
"""
