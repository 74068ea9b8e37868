"""Headless Chromium, and the page as its user sees it."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, Page, expect, sync_playwright

expect.set_options(timeout=60_000)  # of every expectation: machines may be slow and busy
CHROMIUM = shutil.which("chromium")
# As root, without a screen, and without looking for anything outside this machine.
_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser; every page wants a context of its own."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=_ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


class ChatPage:
    """One visit. What the page asked for and what went wrong in it are kept."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.requests: list[str] = []
        self.errors: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.goto(url)
        expect(page.locator("#model")).not_to_be_empty()

    def set_options(self, **values: Any) -> None:
        """By the ids of the fields, `_` for `-`."""
        if not self.page.locator("#temperature").is_visible():
            self.page.get_by_text("Options").click()
        for name, value in values.items():
            field = self.page.locator(f"#{name.replace('_', '-')}")
            if name == "speculation":
                field.select_option(value)
            else:
                field.fill(str(value))

    def ask(self, text: str) -> None:
        """Type a message and send it with Enter."""
        self.page.get_by_label("Message", exact=True).fill(text)
        self.page.keyboard.press("Enter")

    def wait_for_end(self) -> None:
        """Until nothing streams any more and every round that came is drawn."""
        expect(self.page.locator("#send")).to_be_visible(timeout=60_000)
        summary = self.page.locator(".summary").last
        if summary.count() and (rounds := re.search(r"(\d+) rounds", summary.inner_text())):
            all_drawn = re.compile(f" of {rounds[1]}$")
            expect(self.page.locator("#position")).to_have_text(all_drawn, timeout=60_000)

    @property
    def answer(self) -> str:
        """The text of the last answer."""
        return self.page.locator(".message.assistant").last.inner_text()

    @property
    def summary(self) -> str:
        """The line below the last answer."""
        return self.page.locator(".summary").last.inner_text()

    @property
    def position(self) -> tuple[int, int]:
        """The round that is shown, and how many there are."""
        first, _, last = self.page.locator("#position").inner_text().partition(" of ")
        return int(first), int(last)

    def figure(self, name: str) -> str:
        """A number of the round that is shown."""
        group = self.page.locator("#figures div").filter(has_text=name)
        return group.locator("dd").inner_text()

    def num_pills(self, kind: str) -> int:
        """Nodes of a kind in the picture."""
        return self.page.locator(f"#tree .node.{kind}").count()
