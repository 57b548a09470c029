"""The HTML itself: one file, well formed, with names as text, and small enough to send."""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from detsweep import load
from detsweep.analysis.page import build, render
from tests.pages import HOSTILE, every_verdict, many
from tests.support import plan_of, write_cells

VOID = {"meta", "input", "br", "path", "circle"}


class Reader(HTMLParser):
    """Elements in their order, what was never closed or closed wrongly, and the text of scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID and (not self.open or self.open.pop() != tag):
            self.wrong.append(f"</{tag}> in line {self.getpos()[0]}")


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> str:
    return render(build(every_verdict(tmp_path_factory.mktemp("every"))))


@pytest.fixture(scope="module")
def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    return reader


def test_every_element_is_closed_where_it_should_be(read: Reader) -> None:
    assert (read.open, read.wrong) == ([], [])


def test_ids_are_there_once_and_every_link_leads_somewhere(read: Reader) -> None:
    ids = [attrs["id"] for _, attrs in read.seen if "id" in attrs]
    assert len(ids) == len(set(ids))
    links = {attrs["href"] for tag, attrs in read.seen if tag == "a"}
    assert {link for link in links if link and link[1:] not in ids} == set()
    named = {word for _, attrs in read.seen for key in ("aria-labelledby", "for") if (value := attrs.get(key))
             for word in value.split()}  # fmt: skip
    assert named <= set(ids)


def test_nothing_comes_from_elsewhere(html: str, read: Reader) -> None:
    assert not [attrs for _, attrs in read.seen if "src" in attrs or "style" in attrs]
    assert not [tag for tag, _ in read.seen if tag in ("link", "img", "iframe", "base")]
    assert not re.search(r"@import|url\(|https?://", html)


def test_headings_are_in_order_and_tables_have_captions_and_scopes(read: Reader) -> None:
    levels = [int(tag[1]) for tag, _ in read.seen if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    tags = [tag for tag, _ in read.seen]
    assert tags.count("table") == tags.count("caption") > 10
    assert all(attrs.get("scope") in ("row", "col") for tag, attrs in read.seen if tag == "th")
    assert {attrs["tabindex"] for _, attrs in read.seen if "tabindex" in attrs} <= {"0", "-1"}
    assert next(attrs for tag, attrs in read.seen if tag == "html")["lang"] == "en"


def test_names_are_text(html: str, read: Reader) -> None:
    assert "alert(&#39;x&#39;)" in html
    assert HOSTILE not in html
    assert len([1 for tag, _ in read.seen if tag == "script"]) == 2


def test_the_policy_names_exactly_this_style_and_this_script(html: str, read: Reader) -> None:
    policy = next(attrs["content"] for _, attrs in read.seen if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    for kind in ("style", "script"):
        text = re.findall(rf"<{kind}>(.*?)</{kind}>", html, re.DOTALL)
        assert len(text) == 1
        digest = base64.b64encode(hashlib.sha256(text[0].encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy


def test_a_name_in_the_data_of_the_pivot_cannot_end_it(tmp_path: Path) -> None:
    plan = plan_of(*([f"+env.A='</script><b>{n}'", f"seed={n % 2}"] for n in range(3)))
    write_cells(tmp_path, plan)
    text = render(build(load(tmp_path)))
    reader = Reader()
    reader.feed(text)
    assert (reader.open, reader.wrong) == ([], [])
    assert "</script><b>" not in text


def test_the_same_sweep_makes_the_same_page(tmp_path: Path) -> None:
    every_verdict(tmp_path)
    assert render(build(load(tmp_path))) == render(build(load(tmp_path)))


def test_two_hundred_cells_that_all_diverged_are_below_3_mb(tmp_path: Path) -> None:
    many(tmp_path, 200)
    text = render(build(load(tmp_path)))
    assert text.count('<details class="cell') == 200
    assert text.count("Order of events around the first difference") >= 200
    assert len(text.encode()) < 3_000_000
