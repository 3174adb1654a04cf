#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Runs in the guest: record scenarios one after the other with the product's own recorder.

    in_guest.py [--without-probes] DIRECTORY SCENARIO...

--without-probes: perf alone, no message events. Kernels before 6.3 need function probes, whose
trampolines no perf can decode: it copies the kernel's code before they are made.

Scenario number n (from 0) is observed as log n. DIRECTORY/<scenario>/ gets capture.nsight,
requests.tsv, scenario.json and vdso.so.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from machinery.pt_emulation.scenarios.base import Scenario
from machinery.pt_emulation.scenarios.table import SCENARIOS, USER_STACK4
from machinery.testbed.bed import Server, Testbed
from nsight_demo.namespaces import SERVER4, LinkOptions
from nsight_demo.processes import run, wait_until
from nsight_demo.servers import KINDS, USER, ServerKind

TOP = Path(__file__).resolve().parents[4]
PROGRAMS = TOP / "build" / "pt_emulation"
SHIM = Path(__file__).resolve().parent / "shim"
#: The product's own recorder, which takes perf from the shim.
RECORDER = SHIM / "nsight-record"
APP_PORT = 7000

#: The files by which Linux shows Intel PT, as far as the recorder and perf read them.
INTEL_PT = {
    "type": "10",
    "caps/psb_cyc": "1",
    "caps/mtc": "1",
    "caps/topa_output": "1",
    "format/pt": "config:0",
    "format/cyc": "config:1",
    "format/mtc": "config:9",
    "format/tsc": "config:10",
    "format/noretcomp": "config:11",
    "format/branch": "config:13",
    "format/mtc_period": "config:14-17",
    "format/cyc_thresh": "config:19-22",
    "format/psb_period": "config:24-27",
}


def show_intel_pt() -> None:
    """Add an intel_pt to the machine's own event sources, by a mount over their directory."""
    devices = Path("/sys/bus/event_source/devices")
    if (devices / "intel_pt").exists():
        return
    copy = Path("/run/event_source")
    copy.mkdir()
    for entry in devices.iterdir():
        (copy / entry.name).symlink_to(entry.resolve())
    for name, value in INTEL_PT.items():
        path = copy / "intel_pt" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value + "\n")
    run(["mount", "--bind", str(copy), str(devices)])


def watch(symbols: tuple[str, ...], kallsyms: str) -> None:
    """Tell the observer where to log registers."""
    addresses = {}
    for line in kallsyms.splitlines():
        address, _, name = line.split()[:3]
        addresses.setdefault(name, address)
    run([str(PROGRAMS / "pt-mark"), "watch", *(addresses[s] for s in symbols)])


def start_app(bed: Testbed, scenario: Scenario) -> Server:
    """pt-app in the server namespace."""
    argv = [str(PROGRAMS / "pt-app"), SERVER4, str(APP_PORT), scenario.app_cause]
    process = bed.start("pt-app", argv, bed.link.server, bed.app_cpu, USER)
    ss = ["nsenter", f"--net=/run/netns/{bed.link.server}", "--", "ss", "-Hltn"]
    wait_until(lambda: f":{APP_PORT} " in run(ss), "pt-app listening")
    kind = ServerKind("app", APP_PORT, "echo", "none", lambda port, directory: argv, "pt-app")
    return Server(kind, APP_PORT, process)


def start_user_stack(bed: Testbed) -> Server:
    """pt-user-stack on the server's interface, for an address that the kernel does not have."""
    interface = bed.link.interface
    links = json.loads(run(["ip", "-n", bed.link.server, "-j", "link", "show", "dev", interface]))
    neighbour = [USER_STACK4, "lladdr", links[0]["address"], "dev", bed.link.peer]
    run(["ip", "-n", bed.link.client, "neigh", "add", *neighbour])
    argv = [str(PROGRAMS / "pt-user-stack"), interface, USER_STACK4, str(APP_PORT)]
    process = bed.start("pt-user-stack", argv, bed.link.server, bed.app_cpu)
    wait_until(lambda: "ready" in process.output(), "pt-user-stack ready")
    kind = ServerKind(
        "user-stack", APP_PORT, "echo-udp", "none", lambda port, directory: argv, "pt-user-stack"
    )
    return Server(kind, APP_PORT, process)


def start_server(bed: Testbed, scenario: Scenario) -> Server:
    """What the scenario's client talks to."""
    if scenario.server == "app":
        return start_app(bed, scenario)
    if scenario.server == "user-stack":
        return start_user_stack(bed)
    # Nothing else uses the guest: take the usual port, so that repeated captures have the same one.
    return bed.start_server(scenario.server, KINDS[scenario.server].port)


def recorder(capture: Path, port: int, probes: bool) -> list[str]:
    """Command that records while the command appended to it runs."""
    if probes:
        return [str(RECORDER), "--mode", "intel-pt", "-o", str(capture), "--port", str(port), "--"]
    capture.mkdir()
    events = ["-e", "intel_pt/cyc=1,noretcomp=1/"]
    return [
        "perf",
        "record",
        "-a",
        "--kcore",
        "--switch-events",
        "-o",
        str(capture / "perf.data"),
        *events,
        "--",
    ]


def record(number: int, scenario: Scenario, directory: Path, probes: bool) -> None:
    """One capture into ``directory``."""
    work = Path("/tmp/pt") / scenario.name
    work.mkdir(parents=True)
    with Testbed(LinkOptions(gro=scenario.gro), app_cpu=0, load_cpu=scenario.cpus - 1) as bed:
        server = start_server(bed, scenario)
        log = work / "requests.tsv"
        load = bed.load_argv(server, [*scenario.load, "--marks", str(number)], log)
        argv = recorder(work / "capture.nsight", server.port, probes)
        with scenario.disturb(bed, server):
            done = subprocess.run(
                [*argv, *load],
                env={**os.environ, "PATH": f"{SHIM}:{os.environ['PATH']}"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        facts = {
            "scenario": scenario.name,
            "what": scenario.what,
            "kernel": platform.release(),
            "server": scenario.server,
            "port": server.port,
            "server_pid": server.serving_pid,
            "netns": bed.link.inum(),
            "load": list(scenario.load),
            "recorder_exit": done.returncode,
            "recorder_output": done.stdout[-4000:],
        }
    (work / "scenario.json").write_text(json.dumps(facts, indent=1) + "\n")
    run([str(PROGRAMS / "pt-mark"), "vdso", str(work / "vdso.so")])
    shutil.copytree(work, directory / scenario.name)
    print(f"{scenario.name}: recorder exit {done.returncode}", flush=True)
    if done.returncode:
        print(done.stdout[-2000:], flush=True)


def main() -> int:
    """Entry point."""
    arguments = sys.argv[1:]
    probes = arguments[0] != "--without-probes"
    if not probes:
        arguments.pop(0)
    directory, *names = Path(arguments[0]), *arguments[1:]
    show_intel_pt()
    modules = dict.fromkeys(m for name in names for m in SCENARIOS[name].modules)
    if modules:
        run(["modprobe", "-a", *modules])
    kallsyms = Path("/proc/kallsyms").read_text()
    failed = 0
    for number, name in enumerate(names):
        watch(SCENARIOS[name].watch, kallsyms)
        try:
            record(number, SCENARIOS[name], directory, probes)
        except Exception:  # the others can still be recorded
            traceback.print_exc()
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
