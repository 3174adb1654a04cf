# SPDX-License-Identifier: GPL-2.0-only
"""The flight recorder: fixed memory, and a capture of the time around each trigger.

nsight-collect keeps the newest records in the rings of the cores, finds slow messages as they are read, and
writes the records of a window, which becomes a normal capture here. Documentation/flight-recorder.md is for users.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import re
import signal
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from . import clock, collect, host, listening, perf, service, tally, throttling
from .capture import Capture
from .child import Child
from .errors import OutputError, ToolDied, unwritable_hint
from .flight_directory import Directory, registered
from .flight_options import Options
from .machine import Machine
from .ownership import User
from .plan import Plan, describe
from .progress import Progress, human_bytes
from .snapshots import Snapshots
from .supervisor import Signals, Supervisor

#: Clock readings cover this much more than the longest window: the state is written only when it changes.
_CLOCK_SLACK_S = 60
_PIPE_BYTES = 1 << 20
_STOP_TIMEOUT_S = 30.0


class Pipe:
    """Lines that a program prints to a pipe."""

    def __init__(self) -> None:
        self._fd, self.write_fd = os.pipe()
        os.set_blocking(self._fd, False)
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._rest = b""

    def lines(self) -> Iterator[bytes]:
        """The complete lines that are new."""
        while True:
            try:
                text = os.read(self._fd, _PIPE_BYTES)
            except BlockingIOError:
                return
            if not text:
                return
            *whole, self._rest = (self._rest + text).split(b"\n")
            yield from whole

    def close(self) -> None:
        """Close both ends."""
        os.close(self._fd)
        os.close(self.write_fd)


class ClockReadings:
    """The newest lines of nsight-clock, those of the last ``seconds``."""

    def __init__(self, seconds: float) -> None:
        self._keep_ns = int(seconds * 1e9)
        self._head: list[bytes] = []
        self._lines: deque[tuple[int, bytes]] = deque()

    @property
    def started(self) -> bool:
        """Whether there is a first line."""
        return bool(self._head)

    def add(self, line: bytes, now: int) -> None:
        """``now``: CLOCK_MONOTONIC, ns."""
        if line.startswith((b"#", b"C\t")):
            self._head.append(line)
            return
        if line.startswith(b"E\t"):
            return
        self._lines.append((now, line))
        while self._lines and self._lines[0][0] < now - self._keep_ns:
            self._lines.popleft()

    def text(self) -> bytes:
        """clock.tsv with the lines that are kept. The E line counts what is in it: states, and missed ones."""
        lines = [line for _, line in self._lines]
        numbers = [int(line.split(b"\t")[3]) for line in lines if line.startswith(b"V\t")]
        missed = sum(max(0, (b - a) // 2 - 1) for a, b in itertools.pairwise(numbers))
        wall = self._lines[-1][0] - self._lines[0][0] if self._lines else 0
        end = f"E\t{len(numbers)}\t{len(numbers)}\t{missed}\t0\t{wall}".encode()
        return b"\n".join([*self._head, *lines, end, b""])


@dataclass
class Totals:
    """The results of a run."""

    windows: int = 0
    bytes: int = 0
    problems: list[str] = field(default_factory=list)
    end: dict[str, int] = field(default_factory=dict)


class Flight:
    """Runs nsight-collect and nsight-clock, and makes a capture of each window."""

    def __init__(
        self,
        directory: Directory,
        plan: Plan,
        options: Options,
        machine: Machine,
        progress: Progress,
        signals: Signals,
        user: User | None,
        command: Sequence[str],
    ) -> None:
        self._directory = directory
        self._plan = plan
        self._options = options
        self._ring_kb = options.ring_kb(machine.n_possible_cpus, perf.mem_available(machine.root))
        self._machine = machine
        self._progress = progress
        self._signals = signals
        self._supervisor = Supervisor(progress, signals)
        self._user = user
        self._clocks = host.Clocks()
        self._tsc_khz: int | None = None
        self._readings = ClockReadings(2 * (options.before + options.after) + _CLOCK_SLACK_S)
        self._clock_lines, self._records = Pipe(), Pipe()
        self._recording = False
        # The core frequencies at the start say nothing about a window.
        self._about = {**describe(plan, command, machine), "core_khz": {}}
        window_s = options.before + options.after
        self._throttled = throttling.Watch(machine.root, window_s)
        self._listening = listening.Watch(machine.root, plan.filters.netns_inum, window_s)
        self.totals = Totals()
        self._begin = 0.0
        self._snapshots: Snapshots | None = None
        self._syscalls = plan.syscalls  # which ones are recorded; none when they cost too much
        self._unreserved = ""  # why no disk space was reserved for the last window's counts
        self._missed = 0  # runs of BPF programs that the kernel skipped, up to the last window

    def run(self) -> str:
        """Run until Ctrl-C, or until the duration or the command ends; returns the reason, as
        ``manifest.stopped_by``."""
        before = signal.signal(signal.SIGUSR1, self._forward)
        try:
            self._start()
            self._begin = time.monotonic()
            with registered(self._machine.root):
                self._progress.say(self._what())
                service.ready()
                return self._supervisor.watch(self._deadline(), (), self._tick)
        finally:
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
            for child in reversed(self._supervisor.children):
                self._supervisor.stop(child, _STOP_TIMEOUT_S)
                self._tick()
            self.totals.problems += self._supervisor.died
            if self._snapshots:
                self._snapshots.close()
            self._clock_lines.close()
            self._records.close()
            signal.signal(signal.SIGUSR1, before)

    def _start(self) -> None:
        path = self._machine.path
        programs = clock.find(path), collect.find(path)
        assert programs[0] is not None  # preflight saw them
        assert programs[1] is not None
        try:
            run = self._directory.begin()
        except OSError as e:
            raise OutputError(
                f"{self._directory.path}: {e.strerror}", "choose a writable place with -o DIR"
            ) from e
        phcs = [n["phc"] for n in self._plan.nics if n["phc"] is not None]
        reader = [programs[0], *(a for i in sorted(set(phcs)) for a in ("--phc", f"/dev/ptp{i}"))]
        if self._plan.mode == "intel-pt":
            self._start_perf(run)
        command = collect.argv(
            programs[1],
            self._plan.filters,
            run / collect.DIRECTORY,
            self._ring_kb,
            activity=self._plan.mode == "tracepoints",
            hardware_stamps=bool(phcs),
            **self._plan.of_collector(),
            more=self._options.argv(self._directory.used(), self._snapshots),
        )
        inherited = {"clock": (), "collect": (self._snapshots.child.pidfd,) if self._snapshots else ()}
        for name, argv, pipe in (("clock", reader, self._clock_lines), ("collect", command, self._records)):
            log = run / f"{name}.log"
            child = Child(
                name,
                argv,
                log,
                cpus=self._plan.cpus,
                path=path,
                stdout=pipe.write_fd,
                pass_fds=inherited[name],
            )
            self._supervisor.add(child).release()
            self._enter(child, self._about["recorder"])
        self._supervisor.wait_for(
            lambda: self._read() and self._readings.started, "attaching the BPF programs"
        )
        if self._snapshots:
            self._snapshots.enable(self._supervisor)

    def _enter(self, child: Child, version: str) -> None:
        """Enter it into the manifest of every window."""
        self._about.setdefault("tools", {})[child.name] = {
            "version": version, "path": child.program, "argv": child.argv, "env": {}, "pid": child.pid, "exit": None,
        }  # fmt: skip

    def _start_perf(self, run: Path) -> None:
        machine = self._machine
        buffers = perf.choose_buffers("intel-pt", machine.n_cpus, perf.mem_available(machine.root))
        self._snapshots = Snapshots(
            run, perf.intel_pt_event(machine.root), buffers, machine.n_cpus, machine.path
        )
        self._snapshots.start(self._supervisor)
        self._enter(self._snapshots.child, machine.version_of(["perf", "--version"])[1])
        self._about["perf_buffers"] = asdict(buffers)

    def _forward(self, _sig: int, _frame: FrameType | None) -> None:
        for child in self._supervisor.children:
            if child.name == "collect":
                child.signal(signal.SIGUSR1)

    def _deadline(self) -> float | None:
        return self._begin + self._plan.duration if self._plan.duration else None

    def _what(self) -> str:
        o = self._options
        ring = self._ring_kb * 1024 * self._machine.n_possible_cpus
        wanted = [f"a message over {o.latency_us / 1000:g} ms"] if o.latency_us else []
        wanted += [f"a message beyond its service's p{o.percentile:g}"] if o.percentile else []
        wanted += [f"{n} {what} a second" for n, what in ((o.drops, "drops"),
                   (o.retransmissions, "retransmissions")) if n]  # fmt: skip
        kept = "of memory" + (
            f", and of Intel PT {self._snapshots.most_mb} MB at most" if self._snapshots else ""
        )
        return (
            f"flight recorder: {human_bytes(ring)} {kept}; a window of {o.before + o.after:g} s for "
            f"{', '.join([*wanted, 'SIGUSR1'])}; at most {o.per_hour} an hour, {human_bytes(o.most_disk)} in all, in "
            f"{self._directory.path}"
        )

    def _tick(self) -> str | None:
        """Called several times a second."""
        self._read()
        if self._snapshots:
            self._snapshots.tick()
        self._throttled.tick()
        self._listening.tick()
        n = self.totals.windows
        self._progress.draw(
            time.monotonic() - self._begin, self._plan.duration, f"{n} window{'' if n == 1 else 's'}"
        )
        return None

    def _read(self) -> bool:
        """Read what the programs printed; returns whether the recording has begun."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        for line in self._clock_lines.lines():
            self._readings.add(line, now)
            if line.startswith(clock.FIRST_LINE) and (m := re.search(rb"tsc_khz=(\d+)", line)):
                self._tsc_khz = int(m[1]) or None
        for line in self._records.lines():
            if line + b"\n" == collect.STARTED:
                self._recording = True
            elif line.startswith(b"{"):
                self._said(json.loads(line))
            elif m := collect.REASON.fullmatch(line):
                self._about.setdefault("drop_reasons", {})[m[1].decode()] = m[2].decode()
        return self._recording

    def _said(self, what: dict[str, Any]) -> None:
        if "window" in what:
            try:
                self._keep(what)
            except OSError as e:
                raise ToolDied(
                    f"{self._directory.path}: {e.strerror}", "look at the directory and the disk"
                ) from e
        elif "windows" in what:
            self.totals.end = what
        elif "no_room" in what:
            until = (
                "until there is room"
                if what["no_room"] == "disk"
                else "any more (--most-disk): remove windows and restart the recorder"
            )
            if why := what["why"]:
                until = f"until this is mended ({why}); {unwritable_hint(why)}"
            self._progress.warn(f"{self._directory.path}: no room for a window: triggers make none {until}")
        elif "no_percentile" in what:
            self._progress.warn(
                "too many services at once: messages of some have no percentile and trigger no window for it; restrict them with --port"
            )
        elif "over_cpu" in what:
            if what["now"] == "without system calls":
                self._syscalls = "none"
            self._progress.warn(
                f"the BPF programs took {what['over_cpu']} % of the cores, more than {what['most_cpu']} %: "
                f"{'paused for a minute' if what['now'] == 'paused' else what['now']}"
            )

    def _keep(self, window: dict[str, Any]) -> None:
        """Make a capture of a window that nsight-collect has written."""
        now = self._clocks.now()
        stop = host.earlier(now, window["to_ns"], self._tsc_khz)
        start = host.earlier(now, window["from_ns"], self._tsc_khz)
        first = window["triggers"][0]
        at = time.gmtime((host.earlier(now, first["monotonic_ns"], None)["realtime_ns"] or 0) / 1e9)
        name = f"{time.strftime('%Y%m%dT%H%M%SZ', at)}-{os.getpid()}-{self.totals.windows + 1}.nsight"
        path = self._directory.path / name
        with Capture(path, user=self._user, within=self._directory.fd) as capture:
            capture.adopt(self._directory.run_fd, f"records/{window['window']}", collect.DIRECTORY)
            collect.write_interrupts(capture.directory / collect.DIRECTORY)
            with open(capture.create("clock.tsv"), "wb") as f:
                f.write(self._readings.text())
            lost = tally.of_window(window, window["missed"] - self._missed)
            self._missed = window["missed"]
            if (why := window["unreserved"]) and not self._unreserved:
                self._progress.warn(f"{tally.UNRESERVED} ({why}); free disk space")
            self._unreserved = why
            cut = ["not all of the window could be written to the disk"] if window["unwritten"] else []
            if window["paused_ns"]:
                cut.append(
                    f"nothing was recorded for {window['paused_ns'] / 1e9:.3g} s of the window: the BPF programs were paused"
                )
            if self._snapshots:
                cut += self._snapshots.take(capture, stop["realtime_ns"] or 0)
            capture.manifest.update(self._about)
            capture.manifest.update(
                recorder_kind="bpf",
                syscalls=self._syscalls,
                start=start,
                stop=stop,
                stopped_by="window",
                state="cut" if cut else "complete",
                cut=cut,
                losses=lost,
                records={"produced": window["records"], "lost": 0},
                throttled=self._throttled.told(),
                listen_overflows=self._listening.told(),
                **({"unreserved": why} if why else {}),
                flight={
                    "options": asdict(self._options),
                    "short_ns": window["short_ns"],
                    "paused_ns": window["paused_ns"],
                    "records_so_far": window["so_far"],
                    "n_triggers": window["n_triggers"],
                    "triggers": window["triggers"],
                },
            )
            capture.release_reserve()
            capture.save()
            capture.hand_over()
        self.totals.windows += 1
        self.totals.bytes += window["bytes"]
        short = (
            f", {window['short_ns'] / 1e6:.0f} ms short: more --memory keeps more"
            if window["short_ns"]
            else ""
        )
        if window["paused_ns"]:
            short += f", paused for {window['paused_ns'] / 1e9:.3g} s of it (--most-cpu)"
        more = f" and {window['n_triggers'] - 1} more" if window["n_triggers"] > 1 else ""
        self._progress.say(
            f"window: {_told(first)}{more}; {human_bytes(window['bytes'])}{short}\n        {path}"
        )


def _told(trigger: dict[str, Any]) -> str:
    """A trigger in words."""
    if trigger["reason"] == "latency":
        return (
            f"a message took {trigger['latency_ns'] / 1e6:.3g} ms (limit {trigger['limit_ns'] / 1e6:.3g} ms), "
            f"thread {trigger['tid']}, port {trigger['local_port']} from {trigger['remote_port']}"
        )
    if trigger["reason"] == "asked":
        return "requested"
    return f"{trigger['per_second']} {trigger['reason']} a second"
