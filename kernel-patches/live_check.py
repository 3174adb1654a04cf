#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Whether hardware stamp, hand-off and read of a live recording are in order in one clock.

``live_check.py PERF FOLDER``: PERF is a perf with the series of this folder, FOLDER is the output of
guest-live.sh. PERF converts the times of the ``map`` recording to CLOCK_MONOTONIC; those of ``mono`` are
CLOCK_MONOTONIC already. Hardware timestamps are converted through the readings of the device's clock. The
device timestamps a packet between two of its events, so an error of either conversion shows.
"""

from __future__ import annotations

import bisect
import json
import re
import statistics
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PORT = 11211
#: perf script options that print CLOCK_MONOTONIC.
RECORDINGS = {"map": ["--clock=monotonic"], "mono": []}
PROTOCOLS = {"6": "TCP", "17": "UDP"}
#: Header bytes: Ethernet, IPv4 and TCP with timestamps, or UDP.
HEADERS = {"6": 14 + 20 + 32, "17": 14 + 20 + 8}
LINE = re.compile(
    r"(?P<comm>\S.*?) +(?P<tid>\d+) +(?P<s>\d+)\.(?P<ns>\d{9}): +\w+:(?P<event>\w+): (?P<fields>.*)"
)


class Event(NamedTuple):
    """One line of perf script."""

    ns: int
    name: str
    fields: dict[str, str]


class Message(NamedTuple):
    """Times of one piece of data, all CLOCK_MONOTONIC ns; a missing stamp has the value of before_driver."""

    before_driver: int
    stamp: float
    behind_driver: int
    queued: int
    read: int
    protocol: str


def events(perf: str, data: Path, *options: str) -> Iterator[Event]:
    """The output of perf script."""
    argv = [perf, "script", "-i", str(data), *options, "--ns", "-F", "trace:comm,tid,time,event,trace"]
    run = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert run.stdout
    for line in run.stdout:
        if (m := LINE.match(line.strip())) and m["event"] in WANTED:
            fields = dict(w.split("=", 1) for w in m["fields"].split() if "=" in w)
            yield Event(int(m["s"]) * 10**9 + int(m["ns"]), m["event"], fields)
    if run.wait():
        raise SystemExit(f"live_check: error: {data}: perf script failed")


WANTED = {"net_dev_start_xmit", "net_dev_xmit", "sock_data_queued", "sock_data_read", "timekeeping_update"}


def offsets(found: list[Event]) -> list[tuple[int, int]]:
    """(start in CLOCK_REALTIME, CLOCK_REALTIME minus CLOCK_MONOTONIC): one for each setting of the clock."""
    out: list[tuple[int, int]] = []
    for e in found:
        if e.name == "timekeeping_update":
            real, mono = int(e.fields["base_real"]), int(e.fields["base_mono"])
            if not out or real - mono != out[-1][1]:
                out.append((real, real - mono))
    return out


class Device:
    """Converts timestamps of the device's clock to CLOCK_MONOTONIC, through its readings."""

    def __init__(self, clock: Path, sets: list[tuple[int, int]]) -> None:
        rows = []
        for line in clock.read_text().splitlines():
            words = line.split("\t")
            if words[0] == "P":
                before, phc, after = map(int, words[3:6])
                # The first offset also applies before the recording.
                offset = sets[max(0, bisect.bisect_right([r for r, _ in sets], before) - 1)][1]
                rows.append((phc, (before + after) / 2 - offset, after - before))
        typical = statistics.median(width for *_, width in rows)
        # A reading that was interrupted is not precise.
        self.rows = [(phc, mono) for phc, mono, width in rows if width <= 2 * typical]
        self.width = max(width for *_, width in rows if width <= 2 * typical)
        self.keys = [phc for phc, _ in self.rows]

    def __call__(self, phc: int) -> float:
        """Linear interpolation between two readings, CLOCK_MONOTONIC ns."""
        i = min(max(bisect.bisect(self.keys, phc), 1), len(self.rows) - 1)
        (x0, y0), (x1, y1) = self.rows[i - 1], self.rows[i]
        return y0 + (phc - x0) * (y1 - y0) / (x1 - x0)


def messages(found: list[Event], device: Device | None) -> Iterator[Message]:
    """Data that the server read, with all events of its packet.

    Data that the kernel merged with an earlier packet is left out, such as a segment that arrives after an
    ACK while the server is in its socket: it has the timestamp of its own packet, but the address of the
    earlier one.
    """
    start: dict[str, int] = {}
    sent: dict[str, tuple[int, int, int]] = {}
    queued: dict[tuple[str, str, str], tuple[int, int, int]] = {}
    for e in found:
        skb = e.fields.get("skbaddr", "")
        if e.name == "net_dev_start_xmit":
            start[skb] = e.ns
        elif e.name == "net_dev_xmit" and skb in start:
            sent[skb] = (start.pop(skb), e.ns, int(e.fields["len"]))
        elif e.name in ("sock_data_queued", "sock_data_read") and int(e.fields["sport"]) == PORT:
            key = (e.fields["sock_cookie"], e.fields["pos"], skb)
            if e.name == "sock_data_queued" and skb in sent:
                before, behind, length = sent.pop(skb)
                if length == int(e.fields["len"]) + HEADERS[e.fields["protocol"]]:
                    queued[key] = (before, behind, e.ns)
            elif e.name == "sock_data_read" and key in queued:
                before, behind, at = queued.pop(key)
                phc = int(e.fields["hwtstamp"])
                if device and not phc:
                    continue
                stamp = device(phc) if device else before
                yield Message(before, stamp, behind, at, e.ns, PROTOCOLS[e.fields["protocol"]])


def check(perf: str, folder: Path, options: list[str], truth: dict[str, int] | None) -> bool:
    """Check one recording, and print the results."""
    found = list(events(perf, folder / "perf.data", *options))
    sets = offsets(found)
    if len(sets) < 2:
        print(f"{folder.name}: the clock was not set", file=sys.stderr)
        return False
    device = Device(folder / "clock.tsv", sets) if truth else None
    seen = list(messages(found, device))
    if {m.protocol for m in seen} != set(PROTOCOLS.values()):
        print(f"{folder.name}: {len(seen)} messages, not of each protocol", file=sys.stderr)
        return False
    disorder = sum(not m.stamp <= m.queued <= m.read for m in seen)
    nic = sorted(m.queued - m.stamp for m in seen)
    app = sorted(m.read - m.queued for m in seen)
    half = len(seen) // 2
    kinds = ", ".join(f"{n} {p}" for p, n in sorted(Counter(m.protocol for m in seen).items()))
    print(
        f"{folder.name}: {len(seen)} messages ({kinds}) with {'hardware stamp' if truth else 'driver'}, hand-off and"
        f" read in CLOCK_MONOTONIC, {disorder} not in order; clock set {len(sets) - 1} times"
    )
    print(
        f"{'NIC' if truth else 'driver'} to hand-off: median {nic[half] / 1000:.1f} us, hand-off to read: median"
        f" {app[half] / 1000:.1f} us, highest {app[-1] / 1000:.1f} us"
    )
    return not disorder and (device is None or truth is None or stamps_fit(seen, device, truth))


def stamps_fit(seen: list[Message], device: Device, truth: dict[str, int]) -> bool:
    """Whether the driver's moment, as the stamp gives it, is between the two events around it."""
    early, late = truth["delay_ns"], truth["delay_ns"] + truth["jitter_ns"]
    behind = [m.before_driver - (m.stamp + late) for m in seen]
    ahead = [m.stamp + early - m.behind_driver for m in seen]
    errors = [max(b, a, 0) for b, a in zip(behind, ahead, strict=True)]
    wrong = sum(e > device.width for e in errors)
    print(
        f"stamps outside of what the packet's own events allow: {sum(e > 0 for e in errors)}, by {max(errors):.0f} ns"
        f" at most; {wrong} by more than the widest reading of the device's clock ({device.width} ns)"
    )
    print(f"a constant error of the stamps is between {max(behind):.0f} and {-max(ahead):.0f} ns")
    return not wrong


def main() -> int:
    """Entry point."""
    if len(sys.argv) != 3:
        print("usage: live_check.py PERF FOLDER", file=sys.stderr)
        return 2
    perf, folder = sys.argv[1], Path(sys.argv[2])
    truth = json.loads((folder / "facts.json").read_text())["phc_truth"]
    good = [check(perf, folder / name, options, truth) for name, options in RECORDINGS.items()]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
