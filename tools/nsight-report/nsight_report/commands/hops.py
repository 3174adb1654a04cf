# SPDX-License-Identifier: GPL-2.0-only
"""``nsight-report hops``: which layer delayed which packet, and what held it there, from directories of nsight-capsule and captures."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.text import Text

from ..export.terminal import bar, columns, print_table
from ..hops import Collection, causes, layers, load_all, point_classes
from ..names import printable
from ..tables.data_frames import each
from ..tables.store import writing
from ..units import bounded, counted, duration, error, percent
from . import hop_captures

PERCENTILES = (50, 90, 99)
#: A layer is named from this share of the extra time of slow packets.
NAMED = 0.5
#: Causes below this share of a layer's delay are not printed.
_LEAST_SHARE = 0.005
_BY = {"tsc": "by the TSC, which both read", "common": "by the clock of --clock, which both read"}
_PROTOCOLS = {6: "TCP", 17: "UDP"}


def make(args: argparse.Namespace) -> dict[str, Any]:
    """The object that is printed; with --output, the tables are written too. Raises BadInput, OutputError."""
    directories, captures = hop_captures.split(args.directories)
    collection = load_all(directories)
    activities, lost = hop_captures.activities(collection, captures)
    rows = layers.passages(collection)
    what = layers.words(collection, rows)
    slow = layers.chosen(collection.packets, 100 - args.slow, 100)
    usual = layers.usual(collection)
    excess = layers.excess(collection, rows, slow, usual)
    if args.output:
        _write(collection, args.output)
    return {
        "directories": [str(path) for path in args.directories], "match": collection.match, "cut": collection.cut,
        "n_packets": len(collection.packets), "n_arrived": int(collection.packets["arrived"].sum()),
        "latency": {
            **_distribution(collection.packets.loc[collection.packets["arrived"], "latency_ns"]),
            "bound_ns": _widest(collection.packets.loc[collection.packets["arrived"], "bound_ns"]),
        },
        "annotations": {str(at): int(n) for at, n in collection.packets["at"].value_counts().items() if n},
        "slow_percent": args.slow, "n_slow": len(slow),
        "slow_excess_ns": int(slow["latency_ns"].mean() - usual["latency_ns"].median()) if len(slow) else 0,
        "layers": _layers(collection, rows, what, excess),
        "recorded": [collection.kernels[kernel] for kernel in sorted(activities)],
        "causes": causes.of_layers(collection, rows, slow, usual, excess, activities),
        "slowest": _slowest(rows, slow, args.rows),
        "seconds": layers.by_second(collection.packets).to_dict("records"),
        "clocks": _clocks(collection),
        "bursts": layers.bursts(collection.packets).head(args.rows or len(rows)).to_dict("records"),
        "accounting": {name: collection.total(name) for name in _accounted(collection)},
        "losses": [
            {k: row[k] for k in ("key", "severity", "cause", "count", "detail", "remedy")}
            for row in (*collection.losses.to_pylist(), *lost)
        ],
    }  # fmt: skip


def _clocks(collection: Collection) -> list[dict[str, Any]]:
    """How the clock of each kernel but the first is known, and from which packets."""
    names, rows = collection.kernels, []
    for kernel, crossing in sorted(collection.crossings.items()):
        offset = crossing.offset
        at = np.linspace(offset.at_ns[0], offset.at_ns[-1], 257).astype(np.int64)
        ns, bound = offset.of(at)
        rows.append({
            "kernel": names[kernel], "against": names[crossing.nearer], "offset_ns": int(ns[len(ns) // 2]),
            "drift_ppb": round(offset.drift() * 1e9), "bound_ns": _widest(pd.Series(bound)),
            "there": offset.there, "back": offset.back, "by": offset.by or "packets",
        })  # fmt: skip
    return rows


def _widest(bounds: pd.Series[int]) -> int | None:
    """The largest bound; None if one is unknown."""
    return None if (bounds < 0).any() else int(bounds.max()) if len(bounds) else 0


def _known(bound: int) -> int | None:
    return int(bound) if bound >= 0 else None


def _accounted(collection: Collection) -> list[str]:
    """Names of the counts that packets are included in."""
    names = dict.fromkeys(name for of in collection.counts.values() for name in of)
    first = ("drawn", "born", "ended", "left", "end_lost", "left_lost", "matched")
    return [n for n in (*first, *sorted(n for n in names if n.startswith("skip_"))) if n in names]


def _distribution(values: pd.Series[int]) -> dict[str, int | None]:
    """n, percentiles (nearest rank) and the maximum."""
    ns = np.sort(values.to_numpy(np.int64))
    n = len(ns)
    ranks = {f"p{p}_ns": int(ns[max(int(np.ceil(n * p / 100)) - 1, 0)]) if n else None for p in PERCENTILES}
    return {"n": n, **ranks, "max_ns": int(ns[-1]) if n else None}


def _layers(
    collection: Collection, rows: pd.DataFrame, what: dict[str, str], excess: pd.DataFrame
) -> list[dict[str, Any]]:
    """By layer; the layers in which slow packets waited longest come first."""
    of_slow = {str(e.layer): e for e in each(excess)}
    found = [
        {
            "layer": str(name), "what": what[str(name)], **_distribution(group["dur_ns"]), "bound_ns": _widest(group["bound_ns"]),
            "excess_bound_ns": layers.excess_bound(collection, int(group["before"].iloc[0]), int(group["after"].iloc[0])),
            "excess_ns": int(of_slow[str(name)].excess_ns) if str(name) in of_slow else 0,
            "share": float(of_slow[str(name)].share) if str(name) in of_slow else 0.0,
        }
        for name, group in rows.groupby("layer", observed=True)
    ]  # fmt: skip
    return sorted(found, key=lambda layer: -layer["excess_ns"])


def _slowest(rows: pd.DataFrame, slow: pd.DataFrame, n: int) -> list[dict[str, Any]]:
    """The slowest packets, each with its layers in the order of its path."""
    worst = slow.sort_values("latency_ns", ascending=False, kind="stable").head(n or len(slow))
    parts = dict(list(rows[rows["packet"].isin(worst["packet"])].groupby("packet")))
    return [
        {
            "packet": int(p.packet), "born_ns": int(p.born_ns), "latency_ns": int(p.latency_ns), "bound_ns": _known(p.bound_ns),
            "proto": _PROTOCOLS.get(int(p.proto), str(p.proto)), "from": f"{p.saddr}:{p.sport}", "to": f"{p.daddr}:{p.dport}",
            "length": int(p.length), "again": bool(p.again), "at": str(p.at),
            "layers": [{"layer": str(h.layer), "ns": int(h.dur_ns), "bound_ns": _known(h.bound_ns)} for h in each(parts[p.packet])] if p.packet in parts else [],
        }
        for p in each(worst)
    ]  # fmt: skip


def _write(collection: Collection, directory: Path) -> None:
    import pyarrow.parquet as pq

    with writing(directory):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in ("packets", "hops"):
            pq.write_table(collection.arrow(name), directory / f"{name}.parquet", compression="zstd")


def verdict(made: dict[str, Any]) -> str:
    """One sentence that names the layer.

    >>> verdict({"n_arrived": 0})
    'No packet was seen to arrive.'
    """
    if not made["n_arrived"]:
        return "No packet was seen to arrive."
    slow = f"The slowest {made['slow_percent']:g} % ({counted(made['n_slow'], 'packet')})"
    if not made["layers"] or made["layers"][0]["share"] < NAMED:
        return f"{slow} took {duration(made['slow_excess_ns'])} longer than usual; no layer has most of it."
    first = made["layers"][0]
    bound = _error(first["excess_bound_ns"], made["slow_excess_ns"]) if made["clocks"] else ""
    return (
        f"{slow} took {duration(made['slow_excess_ns'])} longer than usual: {percent(first['share'])} of it in "
        f"{printable(first['what'])} ({printable(first['layer'])}){bound}{_held_by(made['causes'], first['layer'])}."
    )


def _held_by(found: list[dict[str, Any]], layer: str) -> str:
    """What held packets in a layer, if one cause accounts for most of it.

    >>> cause = {"layer": "a -> b", "cause": "host took the core", "share": 0.93}
    >>> _held_by([cause], "a -> b"), _held_by([cause], "b -> c")
    (', 93% of that by: host took the core', '')
    """
    causes_of = [c for c in found if c["layer"] == layer and c["share"] >= NAMED]
    return (
        f", {percent(causes_of[0]['share'])} of that by: {printable(causes_of[0]['cause'])}"
        if causes_of
        else ""
    )


def _error(bound: int | None, excess: int) -> str:
    """Error text for an excess of a layer between kernels: offsets cancel in it, drift does not.

    >>> _error(0, 5_000), _error(2_000, 5_000), _error(9_000, 5_000)
    ('', ' (each packet ±2.00 us)', ' (each packet ±9.00 us: it can be the clocks)')
    """
    if bound is None:
        return " (the clocks' drift is unknown)"
    doubt = ": it can be the clocks" if bound >= excess else ""
    return f" (each packet ±{duration(bound)}{doubt})" if bound else ""


def print_for_people(made: dict[str, Any], console: Console) -> None:
    """The same as text."""
    console.print(
        Text(f"{', '.join(printable(path, 200) for path in made['directories'])}: {counted(made['n_packets'], 'packet')}, {made['n_arrived']:,} arrived",
             style="bold"),
        soft_wrap=True,
    )  # fmt: skip
    if made["accounting"]:
        console.print(
            Text("  " + ", ".join(f"{name} {n:,}" for name, n in made["accounting"].items())), soft_wrap=True
        )
    if set(made["annotations"]) - {point_classes.text(point_classes.EVERYWHERE)}:
        stamped = "; ".join(f"{n:,} at {printable(at, 400)}" for at, n in made["annotations"].items())
        console.print(Text(f"  timestamps between birth and end: {stamped}"), soft_wrap=True)
    _print_clocks(made["clocks"], console)
    console.print(Text("\n" + verdict(made) + "\n"), soft_wrap=True)
    for loss in made["losses"]:
        console.print(
            Text(f"  {loss['severity']}: {loss['count']:,} {loss['cause']}: {loss['detail']}"), soft_wrap=True
        )
    if made["layers"]:
        _print_layers(made, console)
    _print_causes(made["causes"], console)
    _print_slowest(made["slowest"], console)
    _print_seconds(made, console)


def _print_clocks(clocks: list[dict[str, Any]], console: Console) -> None:
    """How precise each kernel's times are relative to those of the others."""
    for c in clocks:
        packets = _BY.get(c["by"]) or f"{counted(c['there'], 'packet')} there and {c['back']:,} back"
        if c["bound_ns"] is None:
            what = "offset unknown: from the smallest delay on, latencies between the two are relative"
        else:
            what = f"bound {duration(c['bound_ns'])}, drift {c['drift_ppb'] / 1000:+.2f} ppm"
        console.print(
            Text(
                f"  clock of {printable(c['kernel'])} against {printable(c['against'])}: {what} ({packets})"
            ),
            soft_wrap=True,
        )


def _print_layers(made: dict[str, Any], console: Console) -> None:
    console.print(Text("Layers, by what the slow packets took longer there", style="bold"))
    titles = [f">p{p}" for p in PERCENTILES]
    several = bool(made["clocks"])
    table = columns(
        console,
        "layer",
        "what",
        ">packets",
        *titles,
        ">max",
        *([">error"] if several else []),
        ">of delay",
        "",
    )
    rows: list[dict[str, Any]] = [
        *made["layers"],
        {"layer": "all", "what": "", **made["latency"], "share": None},
    ]
    for r in rows:
        share = r["share"]
        table.add_row(
            Text(printable(r["layer"])), Text(printable(r["what"])), f"{r['n']:,}",
            *(duration(r[f"p{p}_ns"]) for p in PERCENTILES), duration(r["max_ns"]),
            *([error(r["bound_ns"]) or "0"] if several else []),
            "" if share is None else percent(share), "" if share is None else bar(console, share),
        )  # fmt: skip
    print_table(console, table)


def _print_causes(found: list[dict[str, Any]], console: Console) -> None:
    """What held slow packets in the layers that delayed them."""
    if not found:
        return
    console.print(Text("\nWhat held slow packets there, more than usual ones", style="bold"))
    table = columns(console, "layer", "what held them", ">packets", ">longer by", ">of the layer's", "")
    last = ""
    for cause in (c for c in found if c["share"] >= _LEAST_SHARE):
        layer = printable(cause["layer"]) if cause["layer"] != last else ""
        last = cause["layer"]
        table.add_row(
            Text(layer), Text(printable(cause["cause"])), f"{cause['n']:,}", duration(cause["excess_ns"]),
            percent(cause["share"]), bar(console, cause["share"]),
        )  # fmt: skip
    print_table(console, table)


def _print_slowest(slowest: list[dict[str, Any]], console: Console) -> None:
    if not slowest:
        return
    console.print(Text("\nSlowest packets and where they waited", style="bold"))
    table = columns(console, ">packet", ">latency", "from", "to", "", "most of it in")
    for p in slowest:
        none: dict[str, Any] = {"layer": "", "ns": 0, "bound_ns": 0}
        most = max(p["layers"], key=lambda h: h["ns"], default=none)
        share = most["ns"] / p["latency_ns"] if p["latency_ns"] else 0.0
        again = ", sent again" if p["again"] else ""
        table.add_row(
            f"{p['packet']:,}", bounded(p["latency_ns"], p["bound_ns"]), Text(printable(p["from"])), Text(printable(p["to"])),
            bar(console, share), Text(f"{printable(most['layer'])} {bounded(most['ns'], most['bound_ns'])}{again}"),
        )  # fmt: skip
    print_table(console, table)


def _print_seconds(made: dict[str, Any], console: Console) -> None:
    """Section 4.2 of the paper: what an average of a second hides."""
    if not made["seconds"]:
        return
    console.print(Text("\nSeconds: the mean, and single packets beside it", style="bold"))
    table = columns(console, ">second", ">packets", ">mean", ">median", ">max", ">above 5 x mean")
    for s in made["seconds"]:
        table.add_row(
            str(s["second"]), f"{s['n']:,}", duration(s["mean_ns"]), duration(s["p50_ns"]), duration(s["max_ns"]), f"{s['over_mean']:,}"
        )  # fmt: skip
    print_table(console, table)
    for b in made["bursts"]:
        console.print(
            Text(f"  burst of {counted(b['n'], 'slow packet')} within {duration(b['dur_ns'])}, up to {duration(b['max_ns'])}"),
            soft_wrap=True,
        )  # fmt: skip
