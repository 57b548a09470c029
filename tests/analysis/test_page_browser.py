"""The page in a real Chromium, opened from disk: sorted, filtered, turned, opened by mouse and by keyboard, printed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from detsweep import load
from detsweep.analysis.exports import export
from detsweep.analysis.marks import MARKS
from tests.pages import EVERY, every_verdict, many

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome on PATH")
ROWS = "#matrix-table tbody tr"
SHOWN = f"{ROWS}:not([hidden])"
OPEN = "details.cell[open]"


@dataclass
class Opened:
    """A page, and all that it complained about or asked for."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def texts(self, selector: str) -> list[str]:
        return [text.strip() for text in self.page.locator(selector).all_inner_texts()]

    def column(self, title: str) -> list[str]:
        """The fields of a column of the matrix, as they stand in the rows that are shown."""
        heads = self.page.locator("#matrix-table thead th").evaluate_all(
            "heads => heads.map(head => (head.querySelector('button') || head).firstChild.data.replace('\\n', ' '))"
        )
        place = heads.index(title) + 1
        return self.texts(f"{SHOWN} > :nth-child({place})")

    def focused(self) -> str:
        text: str = self.page.evaluate("document.activeElement.textContent.trim().replace(/\\s+/g, ' ')")
        return text


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    # The sandbox cannot be set up by root, as which containers run tests.
    flags = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("every")
    return export(every_verdict(folder), "html")


def _open(browser: Browser, file: Path, **options: Any) -> tuple[BrowserContext, Opened]:
    context = browser.new_context(viewport={"width": 1400, "height": 900}, **options)
    context.set_default_timeout(60_000)
    opened = Opened(context.new_page())
    opened.page.on("console", lambda message: opened.complaints.append(f"{message.type}: {message.text}"))
    opened.page.on("pageerror", lambda error: opened.complaints.append(str(error)))
    opened.page.on("request", lambda request: opened.requests.append(request.url))
    opened.page.goto(file.as_uri())
    return context, opened


@pytest.fixture
def opened(browser: Browser, file: Path) -> Iterator[Opened]:
    """The page with every verdict; whatever a test does with it, nothing complains and nothing leaves the file."""
    context, opened = _open(browser, file)
    yield opened
    assert opened.complaints == []
    assert {url.partition("#")[0] for url in opened.requests} == {file.as_uri()}
    context.close()


def _marks(shown: list[str]) -> list[str]:
    """The marks of links, without what only a screen reader says."""
    return [text.partition("details of")[0].strip() for text in shown]


def test_it_shows_every_cell_and_its_verdict_with_sign_and_word(opened: Opened) -> None:
    assert _marks(opened.column("verdict")) == [MARKS[kind] for kind in EVERY]
    assert opened.page.title().startswith("Divergence matrix: ")
    assert opened.texts("#count") == ["8 of 8 rows shown"]
    assert opened.page.locator(OPEN).count() == 0


def test_a_column_is_sorted_up_down_and_back(opened: Opened) -> None:
    head = opened.page.locator("#matrix-table thead th", has_text="seed")
    before = opened.column("seed")
    assert before == ["2", "2", "10", "10", "9", "9", "1", "1"]
    assert head.get_attribute("aria-sort") is None
    head.locator("button").click()
    assert opened.column("seed") == ["1", "1", "2", "2", "9", "9", "10", "10"]
    assert head.get_attribute("aria-sort") == "ascending"
    head.locator("button").click()
    assert opened.column("seed") == ["10", "10", "9", "9", "2", "2", "1", "1"]
    assert head.get_attribute("aria-sort") == "descending"
    head.locator("button").click()
    assert opened.column("seed") == before
    assert head.get_attribute("aria-sort") is None


def test_fields_without_content_come_last_both_ways(opened: Opened) -> None:
    button = opened.page.locator("#matrix-table thead button", has_text="first")
    for _ in range(2):
        button.click()
        column = opened.column("first divergence")
        assert [bool(text) for text in column] == [True] + [False] * 7


def test_words_verdicts_and_axes_filter_together(opened: Opened) -> None:
    page = opened.page
    page.get_by_label("Rows with the words").fill("DIVERGED block_post")
    assert _marks(opened.column("verdict")) == ["✗ diverged"]
    assert opened.texts("#count") == ["1 of 8 rows shown"]
    page.get_by_role("button", name="Show all").click()
    assert opened.texts("#count") == ["8 of 8 rows shown"]
    page.get_by_label("✓ pass (1)").uncheck()
    page.get_by_label("? none yet (1)").uncheck()
    assert opened.texts("#count") == ["6 of 8 rows shown"]
    page.locator("#filters").get_by_label("dtype").select_option(label="bf16 (4)")
    assert _marks(opened.column("verdict")) == ["! error", "≠ invalid"]
    page.locator("#filters").get_by_label("seed").select_option("=9")
    assert opened.texts("#count") == ["1 of 8 rows shown"]


def test_a_filter_stays_when_the_order_changes(opened: Opened) -> None:
    opened.page.locator("#filters").get_by_label("dtype").select_option("=fp32")
    opened.page.locator("#matrix-table thead button", has_text="seed").click()
    assert opened.column("seed") == ["1", "2", "9", "10"]


def test_a_click_on_a_verdict_opens_its_cell_and_moves_the_focus_there(opened: Opened) -> None:
    opened.page.locator(f"{ROWS} a", has_text="diverged").click()
    assert opened.page.locator(OPEN).count() == 1
    assert opened.focused() == "✗ diverged seed=2 dtype=fp32"
    shown = opened.page.locator(OPEN)
    assert shown.locator("h4").all_inner_texts()[0] == "Where it diverges first"
    assert shown.locator("h4", has_text="Which records differ").is_visible()
    assert (
        shown.locator("table.heat td.first").all_inner_texts() == ["7 first"]
        or shown.locator("table.heat td.first").count() == 1
    )
    assert shown.locator("table.events tr.first").count() == 2
    box = shown.locator("summary").bounding_box()
    assert box is not None
    assert 0 <= box["y"] < 900
    assert opened.page.url.endswith(shown.locator(".body").get_attribute("id") or "?")


def test_a_click_anywhere_in_a_row_does_so_too(opened: Opened) -> None:
    opened.page.locator(f"{ROWS} >> nth=2").locator("td").nth(2).click()
    assert opened.focused() == "! error seed=10 dtype=bf16"
    assert "alert('x')" in opened.page.locator(f"{OPEN} pre").first.inner_text()


def test_a_link_to_a_cell_opens_it_at_once(browser: Browser, file: Path) -> None:
    context, first = _open(browser, file)
    anchor = first.page.locator("details.cell .body").nth(2).get_attribute("id")
    first.page.goto(f"{file.as_uri()}#{anchor}")
    first.page.reload()
    assert first.page.locator(f"{OPEN} .body").get_attribute("id") == anchor
    context.close()


def _tab_to(opened: Opened, wanted: str, most: int = 60) -> None:
    for _ in range(most):
        if opened.focused().startswith(wanted):
            return
        opened.page.keyboard.press("Tab")
    raise AssertionError(f"{wanted!r} is not reached with the Tab key")


def test_the_keyboard_alone_sorts_filters_opens_and_comes_back(opened: Opened) -> None:
    keyboard = opened.page.keyboard
    keyboard.press("Tab")
    assert opened.focused() == "Skip to the matrix"
    keyboard.press("Enter")
    keyboard.press("Tab")
    keyboard.type("seed rank")
    assert opened.texts("#count") != ["8 of 8 rows shown"]
    keyboard.press("Control+a")
    keyboard.press("Delete")
    keyboard.press("Tab")
    keyboard.press("Space")
    assert opened.texts("#count") == ["7 of 8 rows shown"]
    keyboard.press("Space")
    _tab_to(opened, "seed↕")
    keyboard.press("Enter")
    assert opened.column("seed")[0] == "1"
    assert opened.texts("#said") == ["Sorted by seed, ascending"]
    _tab_to(opened, "✗ diverged details of seed=2 dtype=fp32")
    outline = opened.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    keyboard.press("Enter")
    assert opened.focused() == "✗ diverged seed=2 dtype=fp32"
    assert opened.page.locator(OPEN).count() == 1
    _tab_to(opened, "Back to its row in the matrix")
    keyboard.press("Enter")
    opened.page.wait_for_function("document.activeElement.closest('#matrix-table') !== null")
    assert opened.focused() == "✗ diverged details of seed=2 dtype=fp32"


def test_the_way_back_shows_a_row_that_was_filtered_away(opened: Opened) -> None:
    opened.page.locator(f"{ROWS} a", has_text="timeout").click()
    opened.page.get_by_label("~ timeout (1)").uncheck()
    opened.page.locator(f"{OPEN} .back a").click()
    opened.page.wait_for_function("document.activeElement.closest('#matrix-table') !== null")
    assert opened.texts("#count") == ["8 of 8 rows shown"]


def test_the_history_goes_from_cell_to_cell(opened: Opened) -> None:
    opened.page.locator(f"{ROWS} a").nth(0).click()
    opened.page.locator(f"{ROWS} a").nth(1).click()
    opened.page.go_back()
    opened.page.wait_for_function("document.activeElement.textContent.includes('dtype=bf16')")
    assert opened.focused() == "✓ pass seed=2 dtype=bf16"


def test_the_pivot_is_the_same_from_python_and_from_the_script(opened: Opened) -> None:
    page, turn = opened.page, opened.page.locator("#turn")
    written = page.locator("#pivot-table").inner_html()
    assert _marks(opened.texts("#pivot-table tbody a")) == [MARKS[kind] for kind in EVERY]
    turn.get_by_label("seed").select_option("columns")
    turn.get_by_label("dtype").select_option("rows")
    assert opened.texts("#pivot-table thead th") == ["dtype", "seed=2", "seed=10", "seed=9", "seed=1"]
    assert opened.texts("#pivot-table tbody th") == ["bf16", "fp32"]
    assert _marks(opened.texts("#pivot-table tbody tr:first-child a")) == [MARKS[kind] for kind in EVERY[::2]]
    turn.get_by_label("seed").select_option("fields")
    assert [len(text.split("details")) - 1 for text in opened.texts("#pivot-table tbody td")] == [4, 4]
    turn.get_by_role("button", name="As it was").click()
    page.wait_for_function("document.querySelectorAll('#pivot-table tbody tr').length === 4")
    assert "".join(page.locator("#pivot-table").inner_html().split()) == "".join(written.split())
    page.locator("#pivot-table a", has_text="diverged").click()
    assert opened.focused() == "✗ diverged seed=2 dtype=fp32"


def test_the_command_is_copied(browser: Browser, file: Path) -> None:
    context, opened = _open(browser, file, permissions=["clipboard-read", "clipboard-write"])
    opened.page.locator(f"{ROWS} a").nth(0).click()
    command = opened.page.locator(f"{OPEN} .run")
    command.get_by_role("button").click()
    opened.page.wait_for_function("document.getElementById('said').textContent !== ''")
    assert opened.texts("#said") == ["Command copied"]
    text = command.locator("code").inner_text()
    assert text == "python -m detsweep seed=2 dtype=bf16"
    assert opened.page.evaluate("navigator.clipboard.readText()") == text
    context.close()


def test_on_paper_there_are_the_details_of_what_did_not_pass_and_no_controls(opened: Opened) -> None:
    page = opened.page
    page.emulate_media(media="print")
    details = page.locator("details.cell")
    visible = [details.nth(n).locator("h4").first.is_visible() for n in range(details.count())]
    assert visible == [kind in ("diverged", "error", "timeout", "invalid") for kind in EVERY]
    for control in ("#filters", "#turn", "nav", ".copy >> nth=1", "#count"):
        assert not page.locator(control).is_visible(), control
    assert page.locator("#matrix-table").is_visible()
    assert len(page.pdf(prefer_css_page_size=True)) > 20_000


def test_without_javascript_all_of_it_is_there(browser: Browser, file: Path) -> None:
    context, opened = _open(browser, file, java_script_enabled=False)
    page = opened.page
    assert _marks(opened.texts(f"{ROWS} a")) == [MARKS[kind] for kind in EVERY]
    assert _marks(opened.texts("#pivot-table tbody a")) == [MARKS[kind] for kind in EVERY]
    assert page.locator(OPEN).count() == 4
    assert page.locator(f"{OPEN} h4", has_text="Which records differ").is_visible()
    for control in ("#filters", "#turn", ".copy >> nth=0", "th button"):
        assert page.locator(control).count() == 0 or not page.locator(control).is_visible()
    # Of a cell that passed too: a browser opens what a link leads into.
    page.locator(f"{ROWS} a").nth(0).click()
    assert page.locator("details.cell").nth(0).locator("h4").first.is_visible()
    assert opened.requests[-1].startswith("file:")
    context.close()


def _tree(page: Page) -> list[dict[str, Any]]:
    """What Chromium tells a screen reader: roles and names, without what is ignored."""
    session = page.context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    return [
        {
            "role": node.get("role", {}).get("value"),
            "name": str(node.get("name", {}).get("value", "")),
            **{one["name"]: one["value"].get("value") for one in node.get("properties", ())},
        }
        for node in nodes
        if not node.get("ignored")
    ]


def test_a_screen_reader_finds_landmarks_headings_names_and_states(opened: Opened) -> None:
    opened.page.locator("#matrix-table thead button", has_text="seed").click()
    opened.page.locator(f"{ROWS} a", has_text="diverged").click()
    tree = _tree(opened.page)
    roles = [node["role"] for node in tree]
    assert {"banner", "navigation", "main", "form", "status"} <= set(roles)
    named = ("link", "button", "checkbox", "searchbox", "combobox", "table", "region", "form", "heading")
    assert [node for node in tree if node["role"] in named and not node["name"].strip()] == []
    names = {role: [node["name"] for node in tree if node["role"] == role] for role in named}
    assert "✗ diverged details of seed=2 dtype=fp32" in names["link"]
    assert {"Rows with the words"} <= set(names["searchbox"])
    assert len(set(names["region"])) == len(names["region"])
    levels = [int(node["level"]) for node in tree if node["role"] == "heading"]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    heads = [node["name"] for node in tree if node["role"] in ("columnheader", "rowheader")]
    assert any(name.startswith("seed") for name in heads)
    marks = [node["name"] for node in tree if node["role"] == "StaticText"]
    assert "≠ differs first" in marks
    assert any(text.endswith(" first") and text.split()[0].isdigit() for text in marks)


CONTRASTS = """() => {
  const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const over = ([r, g, b, a = 1], under) => [r, g, b].map((value, n) => value * a + under[n] * (1 - a));
  const ground = (node) => {
    if (node === null) return parse(getComputedStyle(document.body).backgroundColor).slice(0, 3);
    const own = parse(getComputedStyle(node).backgroundColor);
    return own.length === 4 && own[3] === 0 ? ground(node.parentElement) : over(own, ground(node.parentElement));
  };
  const light = (colour) => colour.map((value) => value / 255)
    .map((value) => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4)
    .reduce((sum, value, n) => sum + value * [0.2126, 0.7152, 0.0722][n], 0);
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    const text = walker.currentNode.data.trim();
    if (!text || !node.checkVisibility() || node.closest('svg, script, .vh, select')) continue;
    const [a, b] = [light(parse(getComputedStyle(node).color).slice(0, 3)), light(ground(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.push(`${ratio.toFixed(2)} ${node.tagName}.${node.className} ${text}`);
  }
  return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_from_its_ground(scheme: str, browser: Browser, file: Path) -> None:
    context, opened = _open(browser, file, color_scheme=scheme)
    opened.page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    ground = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
    assert opened.page.evaluate(CONTRASTS) == []
    context.close()


@pytest.mark.parametrize("width", [1400, 700, 360])
def test_the_page_itself_never_scrolls_sideways(width: int, browser: Browser, file: Path) -> None:
    context, opened = _open(browser, file)
    opened.page.set_viewport_size({"width": width, "height": 800})
    opened.page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    context.close()


def test_two_hundred_cells_open_and_are_sorted_and_filtered(browser: Browser, tmp_path: Path) -> None:
    many(tmp_path, 200, ranks=2, layers=4)
    file = export(load(tmp_path), "html")
    context, opened = _open(browser, file)
    assert opened.page.locator(ROWS).count() == 200
    opened.page.locator("#matrix-table thead button", has_text="seed").click(click_count=2)
    assert opened.column("seed")[:2] == ["199", "198"]
    opened.page.locator("#words").fill("199")
    opened.page.locator(f"{SHOWN} a").first.click()
    assert "seed=199" in opened.focused()
    assert opened.complaints == []
    context.close()
