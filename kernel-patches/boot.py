#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Build a base with all series, boot it in QEMU, run the selftests, record memcached with perf; report it.

``boot.py [--base BASE] [--cost]``. With ``--cost`` the pristine kernel is also built. In both kernels the
instructions of one update and one message are counted, with the tracepoints off and on.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import check
import sources
from sources import Base, PatchError

GUEST = sources.TOP / "tests/machinery/guest/run"

#: Exit status of GUEST if the guest died. If it cannot be prepared (126), another attempt would not help.
EXIT_GUEST = 125
ATTEMPTS = 5
#: How the guest's CPUs are emulated. The selftest reads the clock on one CPU while another changes it. A
#: recording switches so many tracepoints that a guest with CPUs running in parallel rarely survives.
MODES = {
    "guest-test.sh": ["--smp", "2"],
    "guest-live.sh": ["--smp", "2", "--take-turns"],
    "guest-cost.sh": ["--icount"],
}
#: The Python that reports the recordings; `make boot` creates it.
PYTHON = sources.TOP / ".venv" / "bin" / "python"


def build(base: Base, patched: bool, jobs: int) -> Path:
    """The kernel image, with or without our patches; a copy that the next build does not touch."""
    branch = "patched" if patched else "unpatched"
    sources.reset(base, branch)
    if patched:
        for series in sources.SERIES:
            for patch in sources.patches(series, base):
                sources.apply(base, patch)
        for patch in sources.patches(sources.TEST_ONLY, base):
            sources.apply(base, patch)
    sources.configure(base)
    begun = time.monotonic()
    sources.make(base, "bzImage", jobs=jobs, log=sources.BUILD / base.name / f"{branch}.log")
    image = sources.BUILD / base.name / f"bzImage-{branch}"
    shutil.copy2(base.objects / "arch/x86/boot/bzImage", image)
    print(f"{base.name}: {branch} kernel built in {time.monotonic() - begun:.0f} s", flush=True)
    return image


def programs(base: Base) -> Path:
    """Compile the programs for the guest; needs the patched sources."""
    for source in ("timers/timekeeping-trace.c", "net/sock_data_trace.c"):
        check.selftest(base, f"tools/testing/selftests/{source}")
    folder = sources.BUILD / base.name
    subprocess.run(["gcc", "-O2", "-o", str(folder / "cost"), str(sources.HERE / "cost.c")], check=True)
    for made in ("tools/nsight-demo/load", "tools/nsight-record/clock"):
        subprocess.run(["make", "-s", "-C", str(sources.TOP / made)], check=True)
    return folder


def perf(jobs: int) -> str:
    """perf with the newest base's series; it records on the kernels of all bases."""
    newest = next(iter(sources.bases()))
    begun = time.monotonic()
    command = [sys.executable, str(sources.HERE / "perf" / "check"), "--build", "--jobs", str(jobs), newest]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    print(f"perf with the series of {newest} built in {time.monotonic() - begun:.0f} s", flush=True)
    # The last line follows the messages about fetching the sources.
    return out.splitlines()[-1]


def guest(image: Path, *argv: str, results: Sequence[Path] = ()) -> int:
    """Run kernel-patches/``argv`` in a guest, which can write to ``results``; returns its exit status."""
    options = MODES[argv[0]]
    for folder in results:
        options += ["--rw", str(folder)]
    command = [
        sys.executable,
        str(GUEST),
        "--image",
        str(image),
        *options,
        "--",
        str(sources.HERE / argv[0]),
        *argv[1:],
    ]
    for left in reversed(range(ATTEMPTS)):
        status = subprocess.run(command, check=False).returncode
        if status != EXIT_GUEST or not left:
            break
        print("boot: the guest died; once more", flush=True)
    return status


def live(image: Path, base: Base, program: str) -> int:
    """Record memcached with perf alone and report it; the files stay in the base's folder, ``live``."""
    out = sources.BUILD / base.name / "live"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    failed = guest(image, "guest-live.sh", str(out), program, results=[out])
    if not failed:
        command = [sys.executable, str(sources.HERE / "live_check.py"), program, str(out)]
        failed = subprocess.run(command, check=False).returncode
    if not failed:
        report = [str(PYTHON), str(sources.HERE / "live_report.py"), str(out)]
        failed = subprocess.run(report, check=False).returncode
    if not failed:
        print(f"{base.name}: recordings and reports in {out.relative_to(sources.TOP)}", flush=True)
    return failed


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    known = list(sources.bases())
    p.add_argument("--base", choices=known, default=known[0])
    p.add_argument("--cost", action="store_true", help="count instructions with and without the patches")
    p.add_argument("--jobs", type=int, default=2, metavar="N")
    return p.parse_args(argv)


def main() -> int:
    """Entry point."""
    a = parse()
    base = sources.bases()[a.base]
    try:
        if not PYTHON.exists():
            raise PatchError(
                "nsight-report is not built (hint: make build in the top folder, or make boot here)"
            )
        # Before taking the lock: it needs the newest base's lock.
        program = perf(a.jobs)
        with sources.locked(base):
            sources.fetch(base)
            patched = build(base, True, a.jobs)
            folder = programs(base)
            failed = guest(patched, "guest-test.sh", str(folder)) or live(patched, base, program)
            if a.cost and not failed:
                print("# patched: state, operation, lowest, median number of instructions", flush=True)
                failed = guest(patched, "guest-cost.sh", str(folder))
                pristine = build(base, False, a.jobs)
                print("# pristine", flush=True)
                failed = guest(pristine, "guest-cost.sh", str(folder)) or failed
    except (PatchError, subprocess.CalledProcessError, sources.kernels.GuestError) as e:
        print(f"boot: error: {e}", file=sys.stderr)
        return 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
