# SPDX-License-Identifier: GPL-2.0-only
"""One style for every figure and the page: colours, markers, fonts, latency axes.

Colours are the Okabe-Ito set, which people with the common colour-vision deficiencies can
distinguish; a marker goes with each colour for other readers, and for print. ``at_night`` gives
variants for a dark screen.
"""

from __future__ import annotations

import colorsys
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.markers import TICKDOWN, TICKLEFT, MarkerStyle
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator
from matplotlib.transforms import ScaledTranslation, blended_transform_factory

ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILLION, PURPLE, BLACK = "#0072B2", "#D55E00", "#CC79A7", "#000000"
DARK = "#555555"
GREY = "#9A9A9A"  # for everything that is no cause: ordinary messages, unexplained
PALETTE = (ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILLION, PURPLE, BLACK, DARK, GREY)

# End colours of a differential flame graph, and text on the second.
MORE, LESS, ON_LESS = "#D65F00", "#0070B0", "#FEFEFE"

WHITE, NIGHT = "#FFFFFF", "#14171A"  # background of figures and page, and on a dark screen
# Blue and sky are changed to be distinct from black and from each other. Orange, purple and yellow are light enough as they are.
_AT_NIGHT = {
    BLUE: "#3B93D6", SKY: "#93D5F8", GREEN: "#1FB88A", VERMILLION: "#EE7030", BLACK: "#EDEFF1", DARK: "#B4B9BE",
    GREY: "#838A91", ORANGE: ORANGE, PURPLE: PURPLE, YELLOW: YELLOW, WHITE: NIGHT, ON_LESS: "#EDEFF1",
    "#A04000": "#FF9B5C",  # text
}  # fmt: skip

RC: Any = {
    "figure.dpi": 150,
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.w_pad": 0.1,
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same letters on every machine
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.5,
    # Names come from the capture: "$x^$" must be drawn as it is, not parsed as mathematics.
    "text.parse_math": False,
    "text.usetex": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "nsight",  # the same data gives the same file
}


SMALL_TICKS = "small-ticks"  # name of the artist that draws them


@dataclass(frozen=True)
class Look:
    """How a cause is drawn."""

    colour: str
    marker: str


#: Slow messages without a cause: slow without a known reason; or not slower by more than the recording can resolve.
UNEXPLAINED, NOT_SLOWER = "unexplained", "no slower than usual"

_FIXED: dict[str, Look] = {
    UNEXPLAINED: Look(GREY, "x"),
    NOT_SLOWER: Look(GREY, "o"),
    "Head-of-line blocking (A)": Look(BLUE, "s"),
    "Head-of-line blocking (R)": Look(BLUE, "D"),
    "CPU idle (A)": Look(SKY, "v"),
    "CPU idle (R)": Look(SKY, "^"),
    "NIC delay (R)": Look(PURPLE, "P"),
    "Receive processing (R)": Look(GREEN, "<"),
    "Receive processing (A)": Look(GREEN, ">"),
    "Application stopped (A)": Look(BLACK, "X"),
    "Application processing (A)": Look(YELLOW, "s"),
    "NSight's own cost (A)": Look(DARK, "*"),
    "NSight's own cost (R)": Look(DARK, "d"),
}
# Colours for names. Yellow is last: it has little contrast on white.
_COLOURS = (VERMILLION, ORANGE, PURPLE, BLUE, GREEN, SKY, YELLOW)
_MARKERS = ("o", "p", "h", "*", "d", "8", "H")


def at_night(colour: str) -> str:
    """``colour`` (#RRGGBB) on a dark screen: colours that are no cause keep their hue, and light becomes dark.

    A colour that is not grey fills a box, and light text is drawn on it.

    >>> at_night("#ffffff"), at_night("#DDDDDD")
    ('#14171A', '#323232')
    """
    if colour.upper() in _AT_NIGHT:
        return _AT_NIGHT[colour.upper()]
    hue, light, saturation = colorsys.rgb_to_hls(*to_rgb(colour))
    light = 0.93 - 0.845 * light
    return str(
        to_hex(colorsys.hls_to_rgb(hue, min(light, 0.33) if saturation > 0.2 else light, saturation))
    ).upper()


def looks(causes: Iterable[str]) -> dict[str, Look]:
    """Colour and marker for each cause: the same in every figure, and no two alike in one report.

    Known categories have a fixed look. Other names (programs, interrupts) take a colour from a hash
    of the name, so it rarely changes between captures; if that colour is in use, they take a
    less used one. Give the most important causes first: they get the most distinct looks.
    """
    names = list(dict.fromkeys(causes))
    result = {name: _FIXED[name] for name in names if name in _FIXED}
    taken = set(result.values())
    used = Counter(look.colour for look in taken)
    for name in names:
        if name in result:
            continue
        start = zlib.crc32(name.encode("utf-8", "surrogatepass")) % len(_COLOURS)
        colours = _COLOURS[start:] + _COLOURS[:start]
        free = [Look(c, m) for m in _MARKERS for c in colours if Look(c, m) not in taken]
        # With more causes than looks (some fifty), the last ones share one.
        look = min(free, key=lambda x: used[x.colour], default=Look(DARK, "o"))
        result[name] = look
        taken.add(look)
        used[look.colour] += 1
    return result


def latency_axis(ax: Axes, which: str, low_ns: float, high_ns: float, room: float = 1.3) -> None:
    """A log axis of nanoseconds with ticks 1 us, 10 us, ...; also 2 and 5 on short ranges.

    ``room`` is the factor left free above the highest value.
    """
    axis = ax.yaxis if which == "y" else ax.xaxis
    (ax.set_yscale if which == "y" else ax.set_xscale)("log")
    short = high_ns / max(low_ns, 1) < 200
    axis.set_major_locator(LogLocator(10, (1.0, 2.0, 5.0) if short else (1.0,), numticks=30))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _pos: tick(value)))
    # Sent messages can all be 0 ns long: this is the lower limit of a log axis.
    limits = (max(low_ns, 1) / 1.3, max(high_ns, 1) * room)
    (ax.set_ylim if which == "y" else ax.set_xlim)(*limits)
    small_ticks(ax, which, limits)


def small_ticks(ax: Axes, which: str, limits: tuple[float, float]) -> None:
    """Marks between the ticks of a log axis. As one artist: dozens of minor ticks take longer to draw than everything else."""
    first, last = (int(np.floor(np.log10(end))) for end in limits)
    at = np.concatenate([10.0**decade * np.arange(1, 10) for decade in range(first, last + 1)])
    at = at[(at >= limits[0]) & (at <= limits[1])]
    edge = np.zeros(len(at))
    marks = (
        ax.scatter(at, edge, marker=MarkerStyle(TICKDOWN), transform=ax.get_xaxis_transform())
        if which == "x"
        else ax.scatter(edge, at, marker=MarkerStyle(TICKLEFT), transform=ax.get_yaxis_transform())
    )
    marks.set(sizes=[4], color="black", linewidths=0.6, clip_on=False, zorder=2.1, gid=SMALL_TICKS)
    marks.set_in_layout(False)


def legend_below(ax: Axes, handles: list[Any], columns: int) -> None:
    """A legend under the axis label, at a fixed distance in inches: the same in flat and in tall figures.

    It begins at the left edge of the figure, not of the axes: long tick labels would push it out on the right.
    """
    figure = ax.get_figure(root=True)
    assert figure is not None
    edge = blended_transform_factory(figure.transFigure, ax.transAxes)
    below = edge + ScaledTranslation(0, -0.55, figure.dpi_scale_trans)
    ax.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(0.01, 0),
        bbox_transform=below,
        ncols=columns,
        borderaxespad=0,
    )


def tick(ns: float) -> str:
    """A tick label: a round number of ns, us, ms or s."""
    for unit, scale in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= scale * 0.999:
            return f"{ns / scale:g} {unit}"
    return f"{ns:g} ns"
