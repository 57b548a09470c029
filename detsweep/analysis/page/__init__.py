"""The report as one self-contained HTML file that opens from disk: what it says is computed here, in words and numbers.

`model` is what is on it, `build` makes that from a sweep, `render` makes HTML of it.
"""

from detsweep.analysis.page.build import build as build
from detsweep.analysis.page.render import render as render
