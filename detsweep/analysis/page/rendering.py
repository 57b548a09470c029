"""The page as one HTML file: template, style sheet and script, and nothing from anywhere else."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

from jinja2 import Environment, FunctionLoader, StrictUndefined

from detsweep.analysis.page.model import Page, Pivot


def render(page: Page) -> str:
    """The HTML of a page. What names in it hold is text, never markup."""
    environment = Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined, loader=FunctionLoader(_asset)
    )
    # As they stand in the page: what a browser may run and load is told by the digest of exactly that.
    style, script = (environment.get_template(name).render() for name in ("page.css", "page.js"))
    return environment.get_template("page.html.j2").render(
        page=page, pivot_data=_data(page.pivot), policy=_policy(style, script)
    )


def _policy(style: str, script: str) -> str:
    """What a browser may run and load: this style sheet, this script, and nothing from a network."""
    allowed = {"default-src": "'none'", "style-src": f"'{_hash(style)}'", "script-src": f"'{_hash(script)}'",
               "base-uri": "'none'", "form-action": "'none'"}  # fmt: skip
    return "; ".join(f"{what} {where}" for what, where in allowed.items())


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _asset(name: str) -> str:
    return files("detsweep.analysis.page").joinpath(name).read_text(encoding="utf-8")


def _data(pivot: Pivot | None) -> dict[str, object]:
    """What the script needs to lay out axes against axes anew."""
    if pivot is None:
        return {}
    points = [[list(one.axes), one.mark, one.style, one.href, one.hint] for one in pivot.points]
    return {"axes": list(pivot.axes), "points": points}
