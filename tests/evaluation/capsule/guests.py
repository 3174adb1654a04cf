#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Two guests talk through this host, one layer on the way is stalled from time to time, and nsight-report says which one.

client: eth0 ~ client0 :host: br0, v0 == v1 :host: br1, server0 ~ eth0 :server

The guests are stock Debian kernels; their devices are virtio-net over taps in a network namespace of this host. nsight-capsule runs
in both guests and on the host, nsight-record only on the host. Prints the stalled layer, the report, and the times; exit code 1 if
another layer, or another cause, was named.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [
    str(ROOT / part)
    for part in (".", "tests", "tests/machinery/guest", "tools/nsight-report", "tools/nsight-demo")
]

import kernels  # noqa: E402
from capsule.bed import run  # noqa: E402
from capsule.stamping import Stamping  # noqa: E402

from evaluation.capsule.guest import ADDRESSES, PORT  # noqa: E402

RUN = ROOT / "tests/machinery/guest/run"
RECORDER = ROOT / "tools/nsight-record/nsight-record"
REPORT = ROOT / "tools/nsight-report/nsight-report"
HOST = "10.97.0.3"
#: What can be stalled on the host, the layer that the report must name, and the beginning of the cause that held packets there.
LAYERS = {
    "link": ("the link between the bridges, 1 Mbit/s, gets 12 datagrams of somebody else at once", "host/{space}:v0 out -> host/{space}:v1 in", "queue discipline tbf of host/"),
    "guest": ("the hypervisor of the server stands still for 150 ms", "host/{space}:server0 out -> server/eth0 in", "qemu-system-x86 stopped"),
}  # fmt: skip
STALLS = 6
READY_S = 300.0
TRIES = 3
EXIT_GUEST = 125  # of tests/machinery/guest/run


class EmulatorError(Exception):
    """A guest died, or its clock ran away: emulated guests sometimes do, and are started again."""


class Host:
    """The namespace between the guests."""

    def __init__(self) -> None:
        self.space = f"cap{os.getpid()}"

    def ip(self, *words: str) -> None:
        run("ip", "-n", self.space, *words)

    @contextmanager
    def built(self) -> Iterator[None]:
        run("ip", "netns", "add", self.space)
        try:
            self.ip("link", "add", "v0", "type", "veth", "peer", "name", "v1")
            for bridge, devices in (("br0", ("client0", "v0")), ("br1", ("v1", "server0"))):
                self.ip("link", "add", bridge, "type", "bridge")
                for device in devices:
                    if device.endswith("0") and device != "v0":
                        self.ip("tuntap", "add", device, "mode", "tap")
                    self.ip("link", "set", device, "master", bridge, "up")
                self.ip("link", "set", bridge, "up")
            self.ip("addr", "add", f"{HOST}/24", "dev", "br0")
            yield
        finally:
            subprocess.run(["ip", "netns", "del", self.space], check=False)

    def throttle(self) -> None:
        run(
            "tc",
            "-n",
            self.space,
            "qdisc",
            "add",
            "dev",
            "v0",
            "root",
            "tbf",
            "rate",
            "1mbit",
            "burst",
            "2000",
            "limit",
            "100000",
        )

    def burst(self) -> None:
        """12 datagrams of 1,400 bytes: 139 ms at 1 Mbit/s."""
        code = f"import socket; s = socket.socket(2, 2); [s.sendto(bytes(1400), ('{ADDRESSES['server']}', 9)) for _ in range(12)]"
        run("ip", "netns", "exec", self.space, sys.executable, "-c", code)


@contextmanager
def guest(
    host: Host, role: str, kernel: str, directory: Path, options: list[str]
) -> Iterator[subprocess.Popen[str]]:
    """A guest that runs guest.py; its output goes to DIRECTORY/ROLE.log."""
    words = ["ip", "netns", "exec", host.space, sys.executable, str(RUN), "--kernel", kernel, "--smp", "1", "--mem", "1024",
             "--tap", f"{role}0", "--rw", str(directory), "--timeout", "600",
             "--", sys.executable, str(HERE / "guest.py"), role, str(directory), *options]  # fmt: skip
    with (directory / f"{role}.log").open("w") as log:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


@contextmanager
def recording(capture: Path) -> Iterator[subprocess.Popen[str]]:
    """nsight-record of this host's cores and threads; entered once it records. Its messages are not used."""
    words = [sys.executable, str(RECORDER), "--port", str(PORT), "-o", str(capture)]
    with (capture.parent / "recorder.log").open("w") as log:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, text=True)
    try:
        end = time.monotonic() + READY_S
        while '"start"' not in _text(capture / "manifest.json"):
            if time.monotonic() > end or process.poll() is not None:
                raise RuntimeError(f"nsight-record did not begin: {capture.parent}/recorder.log says why")
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def emulator(process: subprocess.Popen[str]) -> int:
    """Process id of QEMU, the child of ``run``."""
    (pid,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(pid)


def wait_for(path: Path, guests: list[subprocess.Popen[str]]) -> None:
    """Wait until a guest has made it. Raises RuntimeError when a guest ended, or takes too long."""
    end = time.monotonic() + READY_S
    while not path.exists():
        if time.monotonic() > end or any(g.poll() is not None for g in guests):
            raise RuntimeError(f"the guests did not come as far as {path.name}: {path.parent}/*.log say why")
        time.sleep(0.1)


def stall(layer: str, host: Host, server: subprocess.Popen[str], seconds: float) -> None:
    """Stall STALLS times, spread over the traffic."""
    for _ in range(STALLS):
        time.sleep(seconds / (STALLS + 1))
        if layer == "link":
            host.burst()
            continue
        pid = emulator(server)
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(0.15)
        finally:
            os.kill(pid, signal.SIGCONT)


def record(
    layer: str, directory: Path, seconds: float, series: tuple[str, str]
) -> tuple[str, dict[str, float]]:
    """Everything but the report: the layer that was stalled, and how long each part took."""
    host, began, took = Host(), time.monotonic(), {}
    session = str(random.SystemRandom().randrange(1, 1 << 16))
    options = ["--session", session, "--seconds", str(seconds)]
    with host.built(), ExitStack() as running:
        if layer == "link":
            host.throttle()
        here = running.enter_context(
            Stamping(
                directory / "host.capsules",
                "--netns",
                host.space,
                "--port",
                str(PORT),
                "--rate",
                "1",
                "--session",
                session,
                "--leave",
            )
        )
        guests = [
            running.enter_context(guest(host, role, kernel, directory, options))
            for role, kernel in zip(("client", "server"), series)
        ]
        wait_for(directory / "asking", guests)
        recorder = running.enter_context(recording(directory / "host.nsight"))
        took["boot and attach"] = time.monotonic() - began
        stall(layer, host, guests[1], seconds)
        for process in guests:
            if process.wait() == EXIT_GUEST:
                raise EmulatorError(f"{directory}/*.log say what happened to a guest")
            if process.returncode:
                raise RuntimeError(f"a guest failed: {directory}/*.log say why")
        here.end()
        recorder.send_signal(signal.SIGINT)
        recorder.wait(READY_S)
    took["traffic"] = time.monotonic() - began - took["boot and attach"]
    return LAYERS[layer][1].format(space=host.space), took


def again(
    layer: str, directory: Path, seconds: float, series: tuple[str, str]
) -> tuple[Path, tuple[str, dict[str, float]]]:
    """Repeat ``record`` until no emulator failed; also returns its directory: each try has a separate one."""
    for n in range(1, TRIES + 1):
        place = directory / str(n)
        place.mkdir()
        try:
            return place, record(layer, place, seconds, series)
        except EmulatorError as error:
            print(f"try {n} of {TRIES}: {error}", file=sys.stderr)
            if n == TRIES:
                raise
    raise AssertionError


def main() -> int:
    """Entry point."""
    p = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    p.add_argument(
        "--layer", choices=[*LAYERS, "any"], default="any", help="which is stalled (default: any, drawn)"
    )
    p.add_argument("--seed", type=int, help="repeats a draw")
    p.add_argument(
        "--seconds", type=float, default=12.0, help="how long the guests talk (default %(default)s)"
    )
    p.add_argument(
        "--kernels", nargs=2, default=("6.12", "newest"), metavar="SERIES", help="of client and server"
    )
    p.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="DIR",
        help="keep the captures in directories 1, 2, ... of this new one, a try each",
    )
    a = p.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if a.seed is None else a.seed
    layer = random.Random(seed).choice(sorted(LAYERS)) if a.layer == "any" else a.layer
    for series in a.kernels:
        kernels.fetch(series)  # the namespace has no network access
    began = time.monotonic()
    with ExitStack() as held:
        directory = a.output or Path(held.enter_context(tempfile.TemporaryDirectory()))
        directory.mkdir(exist_ok=True)
        print(f"two guests are booting; to be stalled: {layer} (seed {seed})", file=sys.stderr)
        try:
            directory, (wanted, took) = again(layer, directory.resolve(), a.seconds, tuple(a.kernels))
        except (EmulatorError, RuntimeError, kernels.GuestError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        captures = [str(directory / f"{name}.capsules") for name in ("client", "host", "server")]
        captures.append(str(directory / "host.nsight"))
        words = [sys.executable, str(REPORT), "hops", *captures]
        subprocess.run(words, check=True)
        report = json.loads(run(*words, "--json"))
    first = report["layers"][0]
    held = next(
        (c for c in report["causes"] if c["layer"] == first["layer"]), {"cause": "nothing", "share": 0.0}
    )
    found, why = first["layer"] == wanted, held["cause"].startswith(LAYERS[layer][2])
    print(f"\nstalled: {LAYERS[layer][0]}")
    print(
        f"named:   {first['what']}, with {first['share']:.0%} of the delay: {'right' if found else f'wrong, not {wanted}'}"
    )
    print(
        f"held by: {held['cause']}, {held['share']:.0%} of that: {'right' if why else f'wrong, not {LAYERS[layer][2]}'}"
    )
    print(
        ", ".join(f"{name} {seconds:.0f} s" for name, seconds in took.items())
        + f", all {time.monotonic() - began:.0f} s"
    )
    return 0 if found and why else 1


if __name__ == "__main__":
    sys.exit(main())
