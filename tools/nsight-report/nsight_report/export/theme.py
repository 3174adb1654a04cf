# SPDX-License-Identifier: GPL-2.0-only
"""Colours of figures in the page, on light and dark screens: as a style sheet, and inside each picture."""

from __future__ import annotations

import re
from urllib.parse import quote

from ..plots.style import BLACK, PALETTE, at_night
from ..plots.timeline_axes import FILL, NARROW_FUNCTION, RED

_DARK = "@media screen and (prefers-color-scheme: dark)"  # used when the page shows a picture; never on paper
_PAINT = re.compile(r'(fill|stroke)(: |=")(#[0-9a-f]{6})')
_SELECTED = {": ": '[style*="{}: {}"]', '="': '[{}="{}"]'}
_INVISIBLE = re.compile(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<metadata>.*?</metadata>|<!--.*?-->", re.DOTALL)
_SAFE = " !$()*+,-./:;=?@[]^_`{|}~"  # safe in an attribute of a page and in an address


def stylesheet() -> str:
    """Variables ``--c-RRGGBB`` (a cause's colour) and ``--k-KIND`` (a box of a timeline); classes ``k-KIND``."""
    colours = {f"--c-{colour[1:]}": colour for colour in PALETTE}
    kinds = {kind.replace(" ", "-"): fill for kind, fill in FILL.items()}
    kinds |= {"red": RED, "narrow-function": NARROW_FUNCTION}
    colours |= {f"--k-{kind}": fill for kind, fill in kinds.items()}
    both = "".join(f"{name}:light-dark({colour},{at_night(colour)});" for name, colour in colours.items())
    classes = "".join(f".k-{kind}{{fill:var(--k-{kind});background:var(--k-{kind})}}" for kind in kinds)
    return f":root{{{both}}}{classes}"


def picture(svg: bytes) -> str:
    """A figure as an address for ``img``; it is dark on a dark screen."""
    text = re.sub(r"\s*\n\s*", " ", _INVISIBLE.sub("", svg.decode("utf-8"))).strip()
    rules = "".join(
        f"{_SELECTED[how].format(what, colour)}{{{what}:{at_night(colour)}!important}}"
        for what, how, colour in sorted(set(_PAINT.findall(text)))
    )
    # Black texts have no colour attribute. Dots are pictures of dots.
    rest = f"svg{{fill:{at_night(BLACK)}}}image{{filter:invert(1) hue-rotate(180deg)}}"
    dark = f"<style>{_DARK}{{{rest}{rules}}}</style></svg>"
    return "data:image/svg+xml," + quote(text.removesuffix("</svg>") + dark, safe=_SAFE)
