# SPDX-License-Identifier: GPL-2.0-only
"""Recorders that bench_recorder.py compares: how each is started, when it records, how it is stopped, why it cannot run.

All run on one core: nsight-record by its own option, the others by taskset. No fixed sleep waits for their start:
nsight-record writes its start to the manifest, perf has mapped the ring buffers of all cores, and a loader of BPF
programs holds some and sleeps until they deliver data.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from machinery.testbed.bed import Testbed
from nsight_demo.processes import HANGS_S, BedError, Process, wait_until

ROOT = Path(__file__).resolve().parents[3]
RECORD = ROOT / "tools" / "nsight-record" / "nsight-record"
RECEIVE = Path(__file__).with_name("receive.bt")
BY_HAND = Path(__file__).resolve().parents[3] / "bpftrace" / "nsight-record.bt"
#: Parameters of nsight-record.bt after the port, when only slow messages are wanted.
SLOW_ONLY = ["0", "0", "0", "0", "0", "0", "1000"]
#: Debian 12, Debian 13 and the project itself use different names for the BPF CO-RE version.
TCPPKTLAT = ("tcppktlat", "tcppktlat-libbpf")
TCPPKTLAT_BCC = "tcppktlat-bpfcc"
NOTHING = "nothing"
CAPTURE = "capture.nsight"
_SBIN = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


class RecorderError(Exception):
    """A recorder did not start, died, or recorded nothing; the message is the reason in its row."""


@dataclass(frozen=True)
class Recorder:
    """One way to record. The command ``argv(directory, port, cpu)`` writes its data into ``directory``.

    ``is_recording(pid, directory)``: whether it already records. ``missing``: why it cannot run here, "" if it can.
    """

    name: str
    argv: Callable[[Path, int, int], list[str]]
    is_recording: Callable[[int, Path], bool]
    missing: str = ""
    pins_itself: bool = False


@dataclass
class Outcome:
    """Cost of a recording. ``manifest``: nsight-record's, empty for others."""

    start_s: float
    stop_s: float
    manifest: dict[str, Any] = field(default_factory=dict)

    @property
    def produced(self) -> int:
        """Events that its programs produced."""
        return _total(self.manifest.get("events", {}).get("produced", 0))

    @property
    def written(self) -> int:
        """Events in the capture."""
        return _total(self.manifest.get("events", {}).get("written", 0))

    @property
    def lost(self) -> int:
        """Events produced but not written, and all other losses in the manifest, for example of records of cores."""
        told = sum(loss["count"] for loss in self.manifest.get("losses", []))
        return max(told, self.produced - self.written, self.manifest.get("records", {}).get("lost", 0))

    @property
    def kind(self) -> str | None:
        """The recorder that nsight-record used."""
        return self.manifest.get("recorder_kind")


class Running:
    """A recorder that records, from ``start`` to ``stop``."""

    def __init__(self, recorder: Recorder, process: Process, directory: Path, begun_ns: int) -> None:
        self.recorder = recorder
        self.process = process
        self.directory = directory
        self._start_s = (time.monotonic_ns() - begun_ns) / 1e9
        self._begun_ns = begun_ns

    @property
    def pid(self) -> int:
        """Process id of the recorder itself; its programs are children of it."""
        return self.process.pid

    def stop(self) -> Outcome:
        """Interrupt it like Ctrl-C, and wait until it has ended; RecorderError if it recorded nothing."""
        if self.process.poll() is not None:
            raise RecorderError(f"ended by itself: {_last_line(self.process)}")
        begun = time.monotonic()
        exited = os.pidfd_open(self.pid)
        try:
            self.process.signal(signal.SIGINT)
            poller = select.poll()
            poller.register(exited, select.POLLIN)
            if not poller.poll(HANGS_S * 1000):
                raise RecorderError(f"still ran {HANGS_S:g} s after SIGINT")
        finally:
            os.close(exited)
        outcome = Outcome(self._start_s, time.monotonic() - begun)
        self.process.wait()
        if (self.directory / CAPTURE).exists():
            outcome.manifest = manifest(self.directory)
            outcome.start_s = (outcome.manifest["start"]["monotonic_ns"] - self._begun_ns) / 1e9
            if outcome.manifest["cut"] or not outcome.written:
                raise RecorderError(
                    f"no whole recording: {outcome.manifest['cut'] or _last_line(self.process)}"
                )
        return outcome


def start(bed: Testbed, recorder: Recorder, directory: Path, port: int, cpu: int) -> Running:
    """Start it and return when it records; RecorderError if it does not. It ends at the latest with the testbed."""
    begun_ns = time.monotonic_ns()
    argv = recorder.argv(directory, port, cpu)
    # nsight-record ends its programs on SIGTERM; they need longer than a testbed allows its processes.
    process = bed.start(
        "recorder", argv, cpu=None if recorder.pins_itself else cpu, death="TERM", grace_s=HANGS_S
    )

    def records() -> bool:
        process.check_alive()
        return recorder.is_recording(process.pid, directory)

    try:
        wait_until(records, f"{recorder.name} recording")
    except BedError as error:
        process.stop()
        raise RecorderError(_last_line(process) or str(error)) from None
    return Running(recorder, process, directory, begun_ns)


def processes(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for parent in found:
        for path in Path(f"/proc/{parent}/task").glob("*/children"):
            try:
                found += map(int, path.read_text().split())
            except OSError:
                continue  # it has just ended
    return found


def cpu_s(pid: int) -> float:
    """Processor time of a process and all its descendants, including those that have ended and were reaped."""
    ticks = 0
    for each in processes(pid):
        try:
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def programs(pid: int) -> set[int]:
    """IDs of the BPF programs that a process and its descendants hold, directly or through links."""
    found = set()
    for each in processes(pid):
        for path in Path(f"/proc/{each}/fdinfo").glob("*"):
            try:
                lines = path.read_text().splitlines()
            except OSError:
                continue
            found |= {int(line.split()[1]) for line in lines if line.startswith("prog_id:")}
    return found


def manifest(directory: Path) -> dict[str, Any]:
    """The manifest of nsight-record's capture; empty before it exists."""
    try:
        return dict(json.loads((directory / CAPTURE / "manifest.json").read_text()))
    except FileNotFoundError:
        return {}


def find(program: str) -> str | None:
    """Path of a program, including programs in the administrator's directories."""
    return shutil.which(program, path=_SBIN)


def nsight(chooses: bool, which: str | None = None) -> list[Recorder]:
    """nsight-record with its default recorder or with ``which``, and with the recorder of bpftrace and perf.

    ``chooses``: nsight-record has --recorder. If not, the latter recorder is its default.
    """

    def recorder(name: str, which: str | None, missing: str = "") -> Recorder:
        def argv(directory: Path, port: int, cpu: int) -> list[str]:
            command = [
                str(RECORD),
                "-q",
                "-o",
                str(directory / CAPTURE),
                "--port",
                str(port),
                "--cpus",
                str(cpu),
            ]
            return command + (["--recorder", which] if which else [])

        return Recorder(name, argv, lambda pid, directory: "start" in manifest(directory), missing, True)

    absent = "" if chooses else "this nsight-record has no --recorder: bpftrace and perf are its default"
    return [
        recorder("nsight-record", which, absent),
        recorder("nsight-record, bpftrace and perf", "bpftrace" if chooses else None),
    ]


def chooses_recorder() -> bool:
    """Whether nsight-record has the option --recorder."""
    done = subprocess.run([str(RECORD), "--help"], capture_output=True, text=True, check=True)
    return "--recorder" in done.stdout


def others(tcppktlat: str | None = None) -> list[Recorder]:
    """Other recorders in common use. ``tcppktlat``: path of the program, if it is not on PATH."""
    perf = "" if find("perf") else "perf is not installed"
    script = "" if find("bpftrace") else "bpftrace is not installed"
    return [
        _tcppktlat(tcppktlat),
        Recorder("bpftrace receive.bt", lambda f, port, cpu: ["bpftrace", str(RECEIVE), str(port)], _waits_for_bpf, script),
        Recorder(
            "nsight-record.bt",
            lambda f, port, cpu: ["bpftrace", "-o", str(f / "out"), str(BY_HAND), str(port)],
            _waits_for_bpf,
            script,
        ),
        Recorder(
            "nsight-record.bt, 1 ms and more",
            lambda f, port, cpu: ["bpftrace", "-o", str(f / "out"), str(BY_HAND), str(port), *SLOW_ONLY],
            _waits_for_bpf,
            script,
        ),
        Recorder("perf trace -s -a", lambda f, port, cpu: ["perf", "trace", "-s", "-a", "-o", str(f / "out")], _has_rings, perf),
        Recorder(
            "perf sched record -a",
            lambda f, port, cpu: ["perf", "sched", "record", "-a", "-o", str(f / "perf.data")],
            _has_rings,
            perf,
        ),
    ]  # fmt: skip


def _tcppktlat(program: str | None) -> Recorder:
    """The BPF CO-RE version if there is one: it needs no kernel headers and no compiler."""
    missing = ""
    if not program and not (program := next(filter(None, map(find, TCPPKTLAT)), None)):
        release = os.uname().release
        program = find(TCPPKTLAT_BCC)
        if not program:
            missing = "neither libbpf-tools nor bpfcc-tools has it here: bcc has it from 0.29 on"
        elif (
            not Path(f"/lib/modules/{release}/build").exists()
            and not Path("/sys/kernel/kheaders.tar.xz").exists()
        ):
            missing = f"{TCPPKTLAT_BCC} needs kernel headers of {release}, which are not installed"
    return Recorder("tcppktlat", lambda f, port, cpu: [str(program), "-l", str(port)], _waits_for_bpf, missing)  # fmt: skip


def _descriptors(pid: int) -> list[str]:
    found = []
    for path in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            found.append(os.readlink(path))
        except OSError:
            continue
    return found


def _waits_for_bpf(pid: int, directory: Path) -> bool:
    """It holds BPF programs and sleeps in epoll_wait(2), as libbpf and bpftrace do once all programs are attached."""
    try:
        waits_in = Path(f"/proc/{pid}/wchan").read_text()
    except OSError:
        return False
    held = _descriptors(pid)
    return "epoll_wait" in waits_in and any("bpf-prog" in name or "bpf_link" in name for name in held)


def _has_rings(pid: int, directory: Path) -> bool:
    """perf has mapped a ring buffer of each core; it switches its events on right after that."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False
    return maps.count("perf_event") >= (os.cpu_count() or 1)


def _total(count: Any) -> int:
    """Of a number, or of numbers by kind."""
    return sum(count.values()) if isinstance(count, dict) else int(count)


def _last_line(process: Process) -> str:
    said = [line for line in process.output().splitlines() if line.strip() and not line.startswith("hint:")]
    return said[-1].strip() if said else f"exit code {process.poll()}"
