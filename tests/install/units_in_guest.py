#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Runs inside a guest whose PID 1 is systemd: starts, kills and stops the installed units, and writes what was seen as JSON.

units_in_guest.py INSTALLED PACKAGES OUT

INSTALLED: a directory with the files of /usr/local; PACKAGES: one with the Python packages that a distribution would install;
OUT: the file for the results, by name of the step. The guest's file tree is an overlay, so what is written there is gone with it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

MONITOR, EXPORTER, FLIGHT = UNITS = ("nsight-monitor", "nsight-monitor-exporter", "nsight-flight")
WANTED = " ".join(f"{unit}.service" for unit in UNITS)
METRICS = "http://127.0.0.1:9435/metrics"
WINDOWS = Path("/var/lib/nsight")
#: An emulated guest on a busy machine; nothing here measures time.
PATIENCE_S = 120
STALL_S = 3.0
DEFAULTS = {
    "nsight-monitor": 'NSIGHT_MONITOR_OPTIONS=--interval 1 --group-by port --flight /var/lib/nsight\n',
    "nsight-flight": 'NSIGHT_FLIGHT_OPTIONS=--trigger latency=2s --before 1 --after 0.5 --windows-per-hour 600\n',
}  # fmt: skip

facts: dict[str, Any] = {}


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False)


def systemctl(*argv: str) -> dict[str, Any]:
    began = time.monotonic()
    done = run("systemctl", *argv)
    return {"code": done.returncode, "said": done.stderr, "s": round(time.monotonic() - began, 1)}


def shown(unit: str, *names: str) -> dict[str, str]:
    """Properties of a unit."""
    lines = run("systemctl", "show", unit, *(f"-p{name}" for name in names)).stdout.splitlines()
    return dict(line.split("=", 1) for line in lines)


def journal(unit: str) -> list[str]:
    """What the unit's programs and systemd said of it."""
    return run("journalctl", "-u", unit, "-o", "cat", "--no-pager").stdout.splitlines()


def programs() -> dict[str, int]:
    """How many BPF programs are in the kernel, by the name of the process that holds them; without systemd's own, of which a
    service's IPAddressDeny= and DevicePolicy= are made."""
    holders = {}
    for path in Path("/proc").glob("[0-9]*/fdinfo"):
        try:
            name = (path.parent / "comm").read_text().strip()
            texts = [(path / fd).read_text() for fd in os.listdir(path) if name.startswith("nsight")]
        except OSError:
            continue
        holders |= {
            int(number): name for text in texts for number in re.findall(r"^prog_id:\s*(\d+)", text, re.M)
        }
    found = json.loads(run("bpftool", "-j", "prog", "show").stdout or "[]")
    return dict(Counter(holders.get(p["id"], "nobody") for p in found if not p["type"].startswith("cgroup_")))


def processes() -> list[str]:
    """Command lines of the units' processes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if re.search(r"nsight-(monitor|histograms|record|collect|clock)\b", line) and __file__ not in line:
            found.append(line.strip())
    return found


def until(true: Callable[[], Any]) -> Any:
    """The value, once it is true; as it is when the patience ends."""
    end = time.monotonic() + PATIENCE_S
    while not (value := true()) and time.monotonic() < end:
        time.sleep(0.1)
    return value


def status(pid: str) -> dict[str, str]:
    """Lines of /proc/PID/status."""
    lines = Path("/proc", pid, "status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def scrape() -> str:
    """The exporter's answer in OpenMetrics; empty if it gives none."""
    request = urllib.request.Request(METRICS, headers={"Accept": "application/openmetrics-text"})
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return answer.read().decode()
    except OSError:
        return ""


def counted(port: int) -> tuple[int, float]:
    """Datagrams to ``port`` that were read, and since when (s); zeros if the exporter does not answer."""
    labels = rf'\{{[^}}]*port="{port}"[^}}]*stage="udp-socket-read"[^}}]*\}}|\{{[^}}]*stage="udp-socket-read"[^}}]*port="{port}"[^}}]*\}}'
    text = scrape()
    n = re.search(rf"^nsight_stage_latency_seconds_count(?:{labels}) (\S+)", text, re.M)
    since = re.search(rf"^nsight_stage_latency_seconds_created(?:{labels}) (\S+)", text, re.M)
    return (int(float(n[1])), float(since[1])) if n and since else (0, 0.0)


class Datagrams:
    """A receiver of datagrams, to which any number can be sent."""

    def __init__(self) -> None:
        self._receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._receiver.bind(("127.0.0.1", 0))
        self.port = self._receiver.getsockname()[1]
        self._sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._sender.connect(("127.0.0.1", self.port))

    def exchange(self, n: int, wait_s: float = 0.0) -> None:
        """Send ``n``, and read each at once, or after it has waited in the socket."""
        for _ in range(n):
            self._sender.send(b"x" * 100)
            time.sleep(wait_s)
            self._receiver.recv(2048)


def install(installed: Path, packages: Path) -> None:
    subprocess.run(["mount", "--bind", str(installed), "/usr/local"], check=True)
    shutil.copytree(packages / "prometheus_client", "/usr/lib/python3/dist-packages/prometheus_client")
    for name, text in DEFAULTS.items():
        Path("/etc/default", name).write_text(text)
    Path("/run/systemd/system/boot.target").write_text(f"[Unit]\nWants={WANTED}\nAfter={WANTED}\n")
    facts["enable"] = systemctl("enable", *UNITS)
    systemctl("daemon-reload")


def start() -> None:
    """All three in one transaction, as at boot."""
    facts["before"] = programs()
    facts["start"] = systemctl("start", "boot.target")
    facts["programs at start"] = programs()
    facts["states"] = {u: shown(u, "ActiveState", "NRestarts") for u in UNITS}


def count(datagrams: Datagrams) -> None:
    datagrams.exchange(1000)
    facts["counted"] = until(lambda: (found := counted(datagrams.port))[0] >= 1000 and found) or counted(
        datagrams.port
    )
    pid = shown(EXPORTER, "MainPID")["MainPID"]
    facts["exporter"] = status(pid)
    root, mounts = Path("/proc", pid, "root"), Path("/proc", pid, "mountinfo").read_text()
    facts["exporter sees"] = {
        "captures": os.listdir(root / "var/lib/nsight"),
        "writable": [
            m.split()[4]
            for m in mounts.splitlines()
            if m.split()[4] in ("/", "/usr/local", "/sys") and m.split()[5].startswith("rw")
        ],
    }


def triggers() -> list[dict[str, Any]]:
    """The triggers of all windows that are complete, and the state and mode of each window."""
    found = []
    for path in WINDOWS.glob("*.nsight/manifest.json"):
        manifest = json.loads(path.read_text())
        mode = oct(path.parent.stat().st_mode & 0o777)
        found += [{**t, "state": manifest["state"], "mode": mode} for t in manifest["flight"]["triggers"]]
    return found


def stall(datagrams: Datagrams) -> None:
    """A message waits longer than the flight recorder's limit, and then somebody asks for a window."""
    datagrams.exchange(1, STALL_S)
    until(lambda: any(t.get("local_port") == datagrams.port for t in triggers()))
    facts["asked"] = run("nsight-record", "--write-window").stdout
    until(lambda: any(t["reason"] == "asked" for t in triggers()))
    facts["port"], facts["triggers"] = datagrams.port, triggers()


def kill(datagrams: Datagrams) -> None:
    """The monitor's program is killed, and comes back by itself."""
    before = counted(datagrams.port)
    main = shown(MONITOR, "MainPID")["MainPID"]
    began = time.monotonic()
    facts["kill"] = systemctl("kill", "--signal=KILL", "--kill-who=main", MONITOR)
    until(lambda: set(programs()) == {"nsight-collect"})
    facts["left after kill"] = programs()
    datagrams.exchange(10)  # nobody counts these
    until(
        lambda: (
            (now := shown(MONITOR, "ActiveState", "MainPID"))["ActiveState"] == "active"
            and now["MainPID"] != main
        )
    )
    facts["restarted after s"] = round(time.monotonic() - began, 1)
    datagrams.exchange(500)
    until(lambda: (found := counted(datagrams.port))[1] > before[1] and found[0] >= 500)
    facts["counts around kill"] = [before, counted(datagrams.port)]
    facts["states after kill"] = {u: shown(u, "ActiveState")["ActiveState"] for u in UNITS}


def stop() -> None:
    facts["stop"] = systemctl("stop", *UNITS)
    facts["left after stop"] = [programs(), processes()]
    facts["results"] = {u: shown(u, "Result", "ActiveState") for u in UNITS}
    facts["runtime"] = [
        p for p in ("/run/nsight-monitor", "/run/nsight") if Path(p).exists() and os.listdir(p)
    ]


def refuse(unit: str) -> None:
    """A kernel without type information refuses, once."""
    directory = Path(f"/run/systemd/system/{unit}.service.d")
    directory.mkdir(parents=True)
    Path("/etc/default", unit).unlink()  # without --flight
    (directory / "no-btf.conf").write_text("[Service]\nInaccessiblePaths=/sys/kernel/btf\n")
    systemctl("daemon-reload")
    seen = len(journal(unit))
    done = systemctl("start", unit)
    facts[f"refused {unit}"] = {
        **done,
        "journal": journal(unit)[seen:],
        **shown(unit, "ActiveState", "ExecMainStatus"),
    }


def main() -> int:
    installed, packages, out = map(Path, sys.argv[1:])
    datagrams = Datagrams()
    steps: list[tuple[str, Callable[[], None]]] = [
        ("install", lambda: install(installed, packages)),
        ("start", start),
        ("count", lambda: count(datagrams)),
        ("stall", lambda: stall(datagrams)),
        ("kill", lambda: kill(datagrams)),
        ("stop", stop),
        ("refuse", lambda: [refuse(unit) for unit in (MONITOR, FLIGHT)]),
    ]  # fmt: skip
    for name, step in steps:
        began = time.monotonic()
        try:
            step()
        except Exception as e:
            facts[f"failed {name}"] = repr(e)
        facts.setdefault("took", {})[name] = round(time.monotonic() - began, 1)
        print(name, facts["took"][name], flush=True)
        out.write_text(json.dumps({**facts, "journal": {u: journal(u) for u in UNITS}}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
