# SPDX-License-Identifier: GPL-2.0-only
"""``nsight-report compare``: two captures, both compared with the baseline messages of the first.

With a common baseline the delays of both can be subtracted: what a slow message of either takes more than a baseline message
of the first, cause by cause.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from rich.console import Console
from rich.text import Text

from ..coverage import beyond_noise
from ..errors import NoSlowMessages
from ..export.terminal import bar, columns, print_table
from ..names import printable
from ..summary import PERCENTILES, selected
from ..tables import schema
from ..tables.data_frames import to_pandas
from ..units import duration, percent, percentile, supported
from . import settings

if TYPE_CHECKING:
    from ..capture_tables import CaptureTables

#: A cause counts as present from this share of the larger of the two mean delays.
PRESENT = 0.01
_ROWS = 15
_PROGRAMS = 3


@dataclass(frozen=True)
class Side:
    """A capture and its tables ``coverage`` and ``causes``; these are empty if none of its messages is slow."""

    capture: CaptureTables
    coverage: pd.DataFrame
    causes: pd.DataFrame

    @staticmethod
    def of(capture: CaptureTables) -> Side:
        """Makes missing tables. A fix may have left nothing among slow messages such as ``1ms-``."""
        try:
            return Side(capture, capture.coverage, capture.causes)
        except NoSlowMessages:
            none = (to_pandas(schema.empty(name)) for name in ("coverage", "causes"))
            return Side(capture.diagnosed(False), *none)


def make(before: Side, after: Side) -> dict[str, Any]:
    """The object of ``compare --json``. ``after`` was opened with ``against`` = ``before``.

    Raises NoSlowMessages if neither has a message among the slow messages.
    """
    options = before.capture.options
    if not len(before.coverage) and not len(after.coverage):
        raise NoSlowMessages(
            f"no message of either capture is selected by --slow {options.slow}", "choose others with --slow"
        )
    chosen = [selected(s.capture, ["latency_ns", "comm"]) for s in (before, after)]
    latencies = [messages["latency_ns"].to_numpy() for messages in chosen]
    causes = _causes(before, after)
    return {
        "before": _side(before, chosen[0]),
        "after": _side(after, chosen[1]),
        "slow": options.slow,
        "baseline": f"{options.baseline} of {before.capture.name}",
        "percentiles": [
            _percentile(p, *latencies) for p in PERCENTILES if supported(min(map(len, latencies)), p)
        ],
        "causes": causes,
        "settings": settings.differences(before.capture.manifest, after.capture.manifest, causes),
    }


def _side(side: Side, messages: pd.DataFrame) -> dict[str, Any]:
    capture, coverage, latencies = side.capture, side.coverage, messages["latency_ns"].to_numpy()
    slower = beyond_noise(coverage)
    lost = capture.losses["severity"].astype(str)
    return {
        "capture": str(capture.path),
        "mode": capture.manifest.mode,
        "programs": messages["comm"].astype(str).value_counts().index[:_PROGRAMS].tolist(),
        "n_messages": len(latencies),
        "n_slow": len(coverage),
        "max_ns": int(latencies.max()) if len(latencies) else None,
        "mean_slow_deviation_ns": int(coverage["deviation_ns"].mean()) if len(coverage) else None,
        "coverage_median": float(slower["coverage"].median()) if len(slower) else None,
        "n_errors": int((lost == "error").sum()),
        "n_warnings": int((lost == "warning").sum()),
    }


def _percentile(p: float, before: npt.NDArray[np.int64], after: npt.NDArray[np.int64]) -> dict[str, Any]:
    ends = [_interval(x, p) for x in (before, after)]
    values = [percentile(x, p) or 0 for x in (before, after)]
    apart = ends[0][1] < ends[1][0] or ends[1][1] < ends[0][0]
    return {
        "percentile": p,
        "before_ns": values[0],
        "after_ns": values[1],
        "before_interval_ns": list(ends[0]),
        "after_interval_ns": list(ends[1]),
        "change": ("slower" if values[1] > values[0] else "faster") if apart else "not clear",
    }


def _interval(values: npt.NDArray[np.int64], p: float) -> tuple[int, int]:
    """Confidence interval of the percentile: two standard deviations of its rank."""
    n, share = len(values), p / 100
    spread = 2 * np.sqrt(n * share * (1 - share))
    ranks = [int(np.floor(n * share - spread)), int(np.ceil(n * share + spread))]
    low, high = (min(max(r, 1), n) - 1 for r in ranks)
    parted = np.partition(values, [low, high])
    return int(parted[low]), int(parted[high])


def _causes(before: Side, after: Side) -> list[dict[str, Any]]:
    tables = [c.causes.set_index(c.causes["cause"].astype(str)) for c in (before, after)]
    sizes = [max(len(c.coverage), 1) for c in (before, after)]
    whole = max((t["total_deviation_ns"].sum() / n for t, n in zip(tables, sizes)), default=0)
    rows = []
    for cause in dict.fromkeys([*tables[0].index, *tables[1].index]):
        found = [t.loc[cause] if cause in t.index else None for t in tables]
        means = [0 if f is None else int(f["total_deviation_ns"]) // n for f, n in zip(found, sizes)]
        there = [m > PRESENT * whole for m in means]
        rows.append(
            {
                "cause": cause,
                "change": _CHANGES[there[0], there[1]],
                "before_ns": means[0],
                "after_ns": means[1],
                "before_messages": 0 if found[0] is None else int(found[0]["n_messages"]),
                "after_messages": 0 if found[1] is None else int(found[1]["n_messages"]),
            }
        )
    return sorted(rows, key=lambda r: -abs(r["after_ns"] - r["before_ns"]))


_CHANGES = {(True, True): "stayed", (True, False): "went", (False, True): "came", (False, False): "small"}


# -- for people -------------------------------------------------------------------------------


def print_for_people(made: dict[str, Any], console: Console) -> None:
    """The same as text."""
    before, after = made["before"], made["after"]
    names = [printable(Path(x["capture"]).name, 60) for x in (before, after)]
    console.print(Text(f"{names[0]} (before) and {names[1]} (after)", style="bold"))
    for line in verdict(made):
        console.print(Text(line))
    console.print()
    table = columns(
        console, "latency", ">before", ">after", ">change", "verdict", "95 % interval, before | after"
    )
    table.add_row("messages", f"{before['n_messages']:,}", f"{after['n_messages']:,}", "", "", "")
    for p in made["percentiles"]:
        intervals = [" to ".join(duration(v) for v in p[f"{w}_interval_ns"]) for w in ("before", "after")]
        table.add_row(
            f"p{p['percentile']:g}", duration(p["before_ns"]), duration(p["after_ns"]),
            _ratio(p["before_ns"], p["after_ns"]), Text(p["change"], style=_STYLE[p["change"]]), " | ".join(intervals),
        )  # fmt: skip
    table.add_row("max", duration(before["max_ns"]), duration(after["max_ns"]), "", "", "")
    print_table(console, table)
    _print_causes(made, console)


_STYLE = {
    "slower": "red",
    "faster": "green",
    "not clear": "dim",
    "came": "red",
    "went": "green",
    "stayed": "",
    "small": "dim",
}


def verdict(made: dict[str, Any]) -> list[str]:
    """What changed, and how certain that is, in sentences."""
    clear = [p for p in made["percentiles"] if p["change"] != "not clear"]
    said = [
        f"p{p['percentile']:g} {p['change']}: {duration(p['before_ns'])} to {duration(p['after_ns'])}"
        f" ({_ratio(p['before_ns'], p['after_ns'])})"
        for p in clear[-3:]
    ]
    if not made["percentiles"]:
        said = ["too few messages for any percentile"]
    lines = ["Latency: " + ("; ".join(said) if said else "no percentile differs clearly") + "."]
    parts = []
    for change in ("went", "came", "stayed"):
        own = [c for c in made["causes"] if c["change"] == change][:3]
        if own:
            parts.append(f"{change}: " + ", ".join(f"{printable(c['cause'])} ({_shift(c)})" for c in own))
    if parts:
        lines.append("Causes, as delay of a mean slow message: " + "; ".join(parts) + ".")
    else:
        lines.append("No cause delays the slow messages of either.")
    sides = [made["before"], made["after"]]
    covered = [
        f"{percent(side['coverage_median'])} {when}"
        for side, when in zip(sides, ("before", "after"), strict=True)
        if side["coverage_median"] is not None
    ]
    sure = f"Confidence: of the slow messages' delays (medians) the causes explain {' and '.join(covered)}"
    if not covered:
        sure = "Confidence: no slow message is slower than usual, so there is nothing to explain"
    lines += settings.sentences(made["settings"])
    errors = sum(s["n_errors"] for s in sides)
    lines.append(
        f"{sure}; {errors} errors among the losses (see each capture's summary)." if errors else f"{sure}."
    )
    programs = [" and ".join(printable(name) for name in side["programs"]) for side in sides]
    if all(programs) and not set(sides[0]["programs"]) & set(sides[1]["programs"]):
        lines.append(f"The messages are of different programs: {programs[0]} before, {programs[1]} after.")
    if sides[0]["mode"] != sides[1]["mode"]:
        lines.append(
            f"The captures are of modes {sides[0]['mode']} and {sides[1]['mode']}: functions were not compared."
        )
    return lines


def _shift(c: dict[str, Any]) -> str:
    return {"went": duration(c["before_ns"]), "came": duration(c["after_ns"])}.get(
        c["change"], f"{duration(c['before_ns'])} to {duration(c['after_ns'])}"
    )


def _ratio(before: int, after: int) -> str:
    if not before or not after:
        return ""
    return f"x{after / before:.2f}" if after >= before else f"/{before / after:.2f}"


def _print_causes(made: dict[str, Any], console: Console) -> None:
    console.print()
    console.print(
        Text(
            f"Causes: delay of a mean message of {made['slow']}, against {printable(made['baseline'], 100)}",
            style="bold",
        )
    )
    rows = [c for c in made["causes"] if c["change"] != "small"]
    if not rows:
        console.print("  none")
        return
    largest = max(abs(c["after_ns"] - c["before_ns"]) for c in rows) or 1
    table = columns(console, "cause", "change", ">before", ">after", ">messages before", ">after", "")
    for c in rows[:_ROWS]:
        shift = c["after_ns"] - c["before_ns"]
        table.add_row(
            Text(printable(c["cause"])), Text(c["change"], style=_STYLE[c["change"]]), duration(c["before_ns"]),
            duration(c["after_ns"]), f"{c['before_messages']:,}", f"{c['after_messages']:,}",
            bar(console, abs(shift) / largest, "red" if shift > 0 else "green"),
        )  # fmt: skip
    print_table(console, table)
    small = len(made["causes"]) - len(rows)
    more = max(len(rows) - _ROWS, 0)
    if small or more:
        console.print(f"  {small + more} smaller ones: see --json", style="dim")
