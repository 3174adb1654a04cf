# SPDX-License-Identifier: GPL-2.0-only
"""Flame graphs of the slow messages, plain and against the baseline (Fig. 2 of the paper).

The plain one shows where time goes, which is mostly where it always goes. The differential one has the same boxes,
coloured by how much longer they took than in the baseline messages: only this shows what is unusual.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Patch

from ..calls.stacks import SEPARATOR
from ..tables.data_frames import each
from ..units import counted, duration
from .folding import WRAPPER
from .style import LESS, MORE, ON_LESS, legend_below
from .timeline import WRAPS
from .timeline_axes import FILL, NAMES, shortened

_NARROWEST = 0.002  # of the whole: narrower paths are left out
LEVELS = 26
_CHAR = 0.0071
_DIFFERENCE = LinearSegmentedColormap.from_list("difference", [LESS, "#F7F7F7", MORE])


def rows(stacks: pd.DataFrame) -> pd.DataFrame:
    """Boxes of a flame graph from ``calls.stacks.compared``: one row per path that is wide enough to see.

    ``level`` is its vertical position, ``left_ns`` its begin (callees side by side, by name), ``slow_ns`` its width: the
    mean over slow messages; ``baseline_ns`` the mean over baseline messages. Callers that only call share a box.
    """
    whole = float(stacks.loc[stacks["depth"] == 0, "slow_ns"].sum())
    kept = stacks[stacks["slow_ns"] >= max(whole * _NARROWEST, 1e-9)]
    children: dict[str, list[str]] = {}
    nodes = {row.path: row for row in each(kept)}
    for path in nodes:
        children.setdefault(path.rpartition(SEPARATOR)[0], []).append(path)
    found = []
    todo: list[tuple[str, int, float | None]] = [(path, 0, None) for path in reversed(children.get("", []))]
    edge = 0.0
    while todo:
        path, level, left = todo.pop()
        if left is None:  # sides are drawn next to each other
            left, edge = edge, edge + nodes[path].slow_ns
        names, node = [nodes[path].name], nodes[path]
        inside = children.get(path, [])
        while level and len(inside) == 1 and nodes[inside[0]].slow_ns >= WRAPPER * node.slow_ns:
            if not node.kind == nodes[inside[0]].kind == "function":
                break
            path = inside[0]
            names.append(nodes[path].name)
            inside = children.get(path, [])
        if level < LEVELS:
            found.append(
                {
                    "path": path, "name": WRAPS.join(dict.fromkeys(names)), "kind": node.kind, "level": level, "left_ns": left,
                    "slow_ns": node.slow_ns, "baseline_ns": node.baseline_ns, "slow_calls": node.slow_calls,
                    "baseline_calls": node.baseline_calls,
                }
            )  # fmt: skip
            for child in inside:
                todo.append((child, level + 1, left))
                left += nodes[child].slow_ns
    columns = [
        "path",
        "name",
        "kind",
        "level",
        "left_ns",
        "slow_ns",
        "baseline_ns",
        "slow_calls",
        "baseline_calls",
    ]
    return pd.DataFrame(found, columns=columns).sort_values(["level", "left_ns"]).reset_index(drop=True)


def height_inches(frame: pd.DataFrame) -> float:
    """A figure height that keeps the height of the boxes."""
    return 2.0 + 0.26 * (int(frame["level"].max()) + 1 if len(frame) else 1)


def plot(
    frame: pd.DataFrame, n: int, *, ax: Axes, n_baseline: int | None = None, thing: str = "message"
) -> Axes:
    """Draw ``rows`` of ``n`` slow messages; with ``n_baseline`` coloured by the difference to the baseline.

    In grey print, labels distinguish red (more) and blue (less); the scale is the largest
    difference of a box, so the colours of two graphs are not comparable.
    """
    whole = float((frame["left_ns"] + frame["slow_ns"]).max()) if len(frame) else 1.0
    scale, unit = (1e6, "ms") if whole >= 2e6 else (1e3, "us") if whole >= 2e3 else (1.0, "ns")
    difference = frame["slow_ns"] - frame["baseline_ns"]
    # The sides are sums of everything: they would dominate the scale.
    most = max(float(difference[frame["level"] > 0].abs().max() or 0), 1.0) if len(frame) > 2 else 1.0
    corners, fills = [], []
    for row in each(frame):
        left, width = row.left_ns / scale, row.slow_ns / scale
        more = row.slow_ns - row.baseline_ns
        fill = FILL.get(row.kind, "#EEEEEE")
        if n_baseline is not None:
            fill = _DIFFERENCE(0.5 + 0.5 * max(-1.0, min(1.0, more / most)))
        right, top = left + width, row.level + 0.92
        corners.append(((left, row.level), (left, top), (right, top), (right, row.level)))
        fills.append(fill)
        room = int((row.slow_ns / whole - 0.004) / _CHAR)
        if room >= 4:
            label = row.name
            if n_baseline is not None and room > len(label) + 9 and abs(more) >= 0.05 * most:
                label += f" {'+' if more >= 0 else ''}{duration(more)}"
            strong = n_baseline is not None and abs(more) > 0.7 * most
            ax.text(left + width / 2, row.level + 0.44, shortened(label, room), fontsize=8, ha="center", va="center",
                    clip_on=True, color=ON_LESS if strong and more < 0 else "black")  # fmt: skip
    boxes = PolyCollection(corners, facecolors=fills, edgecolors="#777777", linewidths=0.4)
    ax.add_collection(boxes, autolim=False)
    ax.set_xlim(0, whole / scale)
    ax.set_ylim(0, (int(frame["level"].max()) + 1 if len(frame) else 1) + 0.1)
    ax.set_yticks([])
    ax.grid(visible=False)
    ax.spines["left"].set_visible(False)
    ax.set_xlabel(f"mean time of a slow {thing} ({unit}), callees by name")
    ax.set_ylabel("call depth")
    if n_baseline is None:
        ax.set_title(f"Where {counted(n, 'slow ' + thing)} spent their time", loc="left", fontsize=11)
        present = set(frame["kind"])
        legend_below(
            ax,
            [
                Patch(facecolor=c, edgecolor="#777777", label=NAMES[k])
                for k, c in FILL.items()
                if k in present
            ],
            4,
        )
    else:
        title = f"What {counted(n, 'slow ' + thing)} spent more or less on than {counted(n_baseline, 'baseline ' + thing)}"
        ax.set_title(title, loc="left", fontsize=11)
        legend_below(
            ax,
            [
                Patch(facecolor=_DIFFERENCE(1.0), edgecolor="#777777", label=f"{duration(most)} longer than in baseline {thing}s"),
                Patch(facecolor=_DIFFERENCE(0.5), edgecolor="#777777", label="the same"),
                Patch(facecolor=_DIFFERENCE(0.0), edgecolor="#777777", label=f"{duration(most)} shorter"),
            ],
            3,
        )  # fmt: skip
    return ax
