"""The report as one self-contained HTML file that opens from disk: what it says is computed here, in words and numbers.

`model` is what is on it, `building` makes that from a sweep, `rendering` makes HTML of it.
"""

from detsweep.analysis.page.building import build as build
from detsweep.analysis.page.rendering import render as render
