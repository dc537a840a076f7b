"""The page in a real Chromium: every state, hostile words, the keyboard alone, and no request to anybody else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from cdc.model.errors import OperatorError
from cdc.monitor import monitor, watched
from cdc.monitor.judged import STATES, level_of
from tests.conftest import unavailable
from tests.page.browser import chromium
from tests.page.watched import AXE, HINT, HOSTILE, TOKEN, connector, every_state, served, store, views


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    try:
        made = chromium()
        opened = made.__enter__()
    except OperatorError as exc:
        unavailable("Chromium", exc.message)
    try:
        yield opened
    finally:
        made.__exit__(None, None, None)


@contextmanager
def visited(browser: Browser, address: str) -> Iterator[Page]:
    """A page that must have no error, break no rule of its policy, and ask nobody else."""
    told: list[str] = []
    page = browser.new_page()
    page.on("console", lambda message: told.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: told.append(f"error: {error}"))
    page.on("dialog", lambda dialog: told.append(f"dialog: {dialog.message}"))
    page.on("request", lambda request: None if request.url.startswith((address, "data:")) else told.append(request.url))
    page.goto(address)
    try:
        yield page
    finally:
        page.close()
    assert told == []


def _findings(page: Page) -> list[tuple[str, list[str]]]:
    """What axe-core finds, evaluated beside the page's policy."""
    page.evaluate(AXE.read_text(encoding="utf-8"))
    found: dict[str, Any] = page.evaluate("axe.run()")
    return [(one["id"], [node["html"] for node in one["nodes"]]) for one in found["violations"]]


def test_every_state_is_shown_and_words_are_words(browser: Browser) -> None:
    made = every_state()
    with (
        served(made, refused=[{"file": "x.yaml", "level": "bad", "message": HOSTILE, "hint": None}]) as address,
        visited(browser, address) as page,
    ):
        for state in STATES:
            card = page.locator(f"article[data-name=c-{state}]")
            expect(card).to_have_attribute("data-state", state)
            expect(card).to_have_class(f"card {level_of(state, [])}")
            expect(card.locator(".badge")).to_have_text(state)
        expect(page.locator("article[data-name=hostile] .problems")).to_contain_text(HOSTILE)
        expect(page.locator("article[data-name=hostile] code")).to_have_text(HINT)
        expect(page.locator("#files-list")).to_contain_text(HOSTILE)
        expect(page.locator("#consumers-rows")).to_contain_text(HOSTILE)
        expect(page.locator("#consumers-rows")).to_contain_text("≤81,204")
        expect(page.locator("article[data-name=warehouse]")).to_contain_text("0 rows differed")
        expect(page.locator("article[data-name=totals]")).to_contain_text("18,204 rows")
        expect(page.locator("article[data-name=c-streaming] canvas")).to_have_count(2)
        expect(page.locator("article[data-name=c-streaming]")).to_contain_text("process 4711")
        expect(page.locator("article[data-name=c-streaming]")).to_contain_text("11.4 h")
        assert page.locator("img").count() == 0
        bad = sum(one.entry()["level"] == "bad" for one in made) + 1  # and the file
        expect(page.locator("#summary")).to_contain_text(f"{bad} wrong")
        expect(page).to_have_title(f"({bad}) cdc monitor")
        assert _findings(page) == []


def test_it_follows_and_says_when_it_cannot(browser: Browser) -> None:
    """A state that changes changes on the page, what has the focus keeps it, and a monitor that is gone is said."""
    one = connector("shop", problems=[{"level": "warn", "says": "mind", "hint": HINT}])
    with served([one], commands=False) as address:
        page = browser.new_page()
        page.goto(address)
        card = page.locator("article[data-name=shop]")
        expect(card).to_have_class("card warn")
        expect(page.locator("#commands")).to_be_hidden()
        card.get_by_role("button").focus()
        one.made |= {"state": "stopped", "level": "bad", "lag_seconds": 77.7}
        expect(card).to_have_class("card bad")
        expect(card).to_have_attribute("data-state", "stopped")
        expect(card.locator(".plot").first).to_contain_text("77.7")
        expect(card.get_by_role("button")).to_be_focused()
        one.made["slot"] = 5  # what no release says: this card cannot be shown whole, and the page goes on
        one.made |= {"state": "retrying"}
        expect(card).to_have_attribute("data-state", "retrying")
        expect(page.locator("#stale")).to_be_hidden()
    expect(page.locator("#stale")).to_be_visible(timeout=30_000)
    expect(page.locator("#stale")).to_contain_text("does not answer")
    page.close()


@pytest.mark.full  # the page seldom changes: the two before it say whether it works
def test_the_keyboard_alone_is_enough(browser: Browser) -> None:
    """From the top of the page by Tab to a hint that is copied, and to a command with its token."""
    one = connector("shop", "failed", problems=[{"level": "bad", "says": "gone", "hint": HINT}])
    with served([one, store("warehouse"), views("totals")]) as address:
        page = browser.new_page()
        refused: list[int] = []
        page.on("response", lambda answer: refused.append(answer.status) if "command" in answer.url else None)
        page.goto(address)
        expect(page.locator("article")).to_have_count(3)
        page.keyboard.press("Tab")
        expect(page.locator(".skip")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("#main")).to_be_focused()
        page.keyboard.press("Tab")
        copy = page.get_by_role("button", name=f"Copy the command: {HINT}")
        expect(copy).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator(".hint [role=status]")).to_have_text(re.compile("Copied|Selected"))
        for command in ("pause", "resume", "reload", "snapshot"):
            page.keyboard.press("Tab")
            expect(page.get_by_role("button", name=f"{command} shop")).to_be_focused()
        page.keyboard.press("Tab")
        expect(page.get_by_label("Token of commands")).to_be_focused()
        page.keyboard.type(TOKEN)
        for _ in range(4):
            page.keyboard.press("Shift+Tab")
        expect(page.get_by_role("button", name="pause shop")).to_be_focused()
        page.keyboard.press("Space")
        expect(page.locator("#answer")).to_contain_text("pause of shop is refused: there is no such connector here")
        assert refused == [404]
        assert TOKEN not in page.content()
        assert _findings(page) == []
        page.close()


@pytest.mark.full  # the page seldom changes: its first two tests say whether it works
def test_a_narrow_and_a_dark_page_are_as_good(browser: Browser) -> None:
    with served(every_state()) as address:
        page = browser.new_page(viewport={"width": 360, "height": 700}, color_scheme="dark")
        page.goto(address)
        expect(page.locator("article")).to_have_count(len(STATES) + 3)
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert _findings(page) == []
        page.close()


def test_what_ends_is_seen_within_five_seconds() -> None:
    """A look at the server, putting together, a poll of the page: how long these may take one after the other."""
    script = (AXE.parents[2] / "cdc/monitor/page/page.js").read_text(encoding="utf-8")
    found = re.search(r"EVERY_MS = (\d+)", script)
    assert found is not None
    assert watched.SERVER_S + monitor.EVERY_S + int(found[1]) / 1000 <= 4, "and a second for the answers"
