# SPDX-License-Identifier: GPL-2.0-only
"""What is done to a server in the guest while it is recorded."""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from machinery.testbed.bed import Server, Testbed

    from .base import Hook

PORTS = 20000  # local ports of the client's connections, where they are told apart


def _nft(bed: Testbed, rules: str) -> None:
    nft = ["nsenter", f"--net=/run/netns/{bed.link.server}", "--", "nft", "-f", "-"]
    subprocess.run(nft, input=rules, text=True, check=True)


def hog(burn_us: int, idle_us: int) -> Hook:
    """A real-time program takes the core periodically."""

    @contextlib.contextmanager
    def hook(bed: Testbed, server: Server) -> Iterator[None]:
        from nsight_demo.bed import HOG

        bed.start("hog", [str(HOG), "-C", "0", "-b", str(burn_us), "-i", str(idle_us), "-f", "10"])
        yield

    return hook


def busy_peer(burn_us: int, idle_us: int) -> Hook:
    """At times the client's core does not go idle; then the emulator runs the other core later."""

    @contextlib.contextmanager
    def hook(bed: Testbed, server: Server) -> Iterator[None]:
        from nsight_demo.bed import HOG

        core = str(bed.load_cpu)
        bed.start("peer", [str(HOG), "-C", core, "-b", str(burn_us), "-i", str(idle_us)])
        yield

    return hook


def kworker(n_namespaces: int, every_s: float) -> Hook:
    """Network namespaces are removed, one by one; a kworker cleans up after them."""
    names = [f"pt-gone-{n}" for n in range(n_namespaces)]

    def turn(n: int) -> None:
        if n < n_namespaces:
            # Like `ip netns del`, without starting a program.
            path = f"/run/netns/{names[n]}"
            mnt_detach = 2
            if ctypes.CDLL(None, use_errno=True).umount2(path.encode(), mnt_detach):
                print(f"umount {path}: error {ctypes.get_errno()}", file=sys.stderr)
            Path(path).unlink()

    @contextlib.contextmanager
    def hook(bed: Testbed, server: Server) -> Iterator[None]:
        for name in names:
            subprocess.run(["ip", "netns", "add", name], check=True)
        with _turns(turn, every_s):
            yield

    return hook


def netfilter(n_rules: int, n_ports: int) -> Hook:
    """A long chain of rules that match nothing, for some connections."""

    @contextlib.contextmanager
    def hook(bed: Testbed, server: Server) -> Iterator[None]:
        rules = "\n".join(
            f"ip saddr 203.0.113.{i % 256} tcp dport {1024 + i // 256} drop" for i in range(n_rules)
        )
        ports = ", ".join(str(PORTS + i) for i in range(n_ports))
        _nft(
            bed,
            f"table ip pt {{\nchain long {{\n{rules}\n}}\nchain input {{ type filter hook input priority 0;"
            f" tcp sport {{ {ports} }} jump long; }}\n}}\n",
        )
        yield

    return hook


def drop_every(n: int, port: int) -> Hook:
    """Every ``n``th data packet of one connection is lost; TCP sends it again."""

    @contextlib.contextmanager
    def hook(bed: Testbed, server: Server) -> Iterator[None]:
        _nft(
            bed,
            "table ip pt {\nchain input { type filter hook input priority 0;"
            f" tcp sport {port} meta length > 60 numgen inc mod {n} == {n - 1} drop; }}\n}}\n",
        )
        yield

    return hook


def defer_interrupts(us: int) -> Hook:
    """After a packet the interface looks for the next one by timer: interrupt coalescing in NAPI."""

    @contextlib.contextmanager
    def hook(bed: Testbed, server: Server) -> Iterator[None]:
        for name, value in (("gro_flush_timeout", us * 1000), ("napi_defer_hard_irqs", 1)):
            path = f"/sys/class/net/{bed.link.interface}/{name}"
            # `ip netns exec` mounts the namespace's own sysfs.
            tee = ["ip", "netns", "exec", bed.link.server, "tee", path]
            subprocess.run(tee, input=str(value), text=True, check=True, stdout=subprocess.DEVNULL)
        yield

    return hook


def neighbour(kind: str, options: tuple[str, ...], mark: int) -> Hook:
    """Another service on the same core, with a client of its own."""

    @contextlib.contextmanager
    def hook(bed: Testbed, server: Server) -> Iterator[None]:
        other = bed.start_server(kind, 9001)
        load = ["-d", "600", "--mark-cause", str(mark), *options]
        bed.start_load(other, load, bed.directory / "neighbour.tsv")
        yield

    return hook


def _load_runs() -> bool:
    """Whether the load client runs; until then the recorder is still starting."""
    for path in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(OSError):
            if path.read_text() == "load-client\n":
                return True
    return False


@contextlib.contextmanager
def _turns(turn: Callable[[int], None], every_s: float) -> Iterator[None]:
    """Call ``turn(n)`` every ``every_s``, from the start of the load on."""
    leave = threading.Event()

    def turns() -> None:
        n = 0
        while not _load_runs():
            if leave.wait(0.1):
                return
        while not leave.wait(every_s):
            turn(n)
            n += 1

    thread = threading.Thread(target=turns)
    thread.start()
    try:
        yield
    finally:
        leave.set()
        thread.join()


def clock(turn: Callable[[int], None], every_s: float) -> Hook:
    """``turn(n)`` of the system clock every ``every_s``."""

    @contextlib.contextmanager
    def hook(bed: Testbed, server: Server) -> Iterator[None]:
        with _turns(turn, every_s):
            yield

    return hook


def bend(n: int) -> None:
    """Slew the clock one way and the other, and step it by 2 ms each fourth time."""
    if n % 4 == 3:
        time.clock_settime_ns(time.CLOCK_REALTIME, time.clock_gettime_ns(time.CLOCK_REALTIME) + 2_000_000)
        return
    _adjust_frequency(200.0 if n % 2 else -200.0)


def _adjust_frequency(ppm: float) -> None:
    """adjtimex(ADJ_FREQUENCY); the frequency is in 2^-16 ppm."""

    class Timex(ctypes.Structure):
        _fields_ = [
            ("modes", ctypes.c_uint),
            ("offset", ctypes.c_long),
            ("freq", ctypes.c_long),
            ("rest", ctypes.c_byte * 256),
        ]

    adj_frequency = 2
    timex = Timex(modes=adj_frequency, freq=int(ppm * 65536))
    if ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex)) < 0:
        print(f"adjtimex: error {ctypes.get_errno()}", file=sys.stderr)
