# SPDX-License-Identifier: GPL-2.0-only
"""One recording, from the open capture directory to the last manifest."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import (
    __version__,
    clock,
    collect,
    host,
    intervals,
    listening,
    payload,
    perf,
    probes,
    tally,
    throttling,
)
from .capture import Capture
from .child import Child
from .errors import OutputError, RecordError, Usage
from .machine import Machine
from .netns import enter
from .plan import Plan
from .progress import Progress, human_bytes
from .supervisor import Control, Interrupted, Signals, Supervisor

_STOP_TIMEOUT_S = {"collect": 30.0, "bpftrace": 30.0, "perf": 600.0, "clock": 10.0, "tcpdump": 10.0}
_COMMAND_GRACE_S = 5.0


class Recording:
    """Runs the programs for ``plan`` and keeps the manifest of ``capture`` true throughout."""

    def __init__(
        self, capture: Capture, plan: Plan, machine: Machine, progress: Progress, signals: Signals
    ) -> None:
        self._capture = capture
        self._plan = plan
        self._machine = machine
        self._progress = progress
        self._supervisor = Supervisor(progress, signals)
        self._clocks = host.Clocks()
        self._dir = capture.directory
        self._memory = perf.mem_available(machine.root)
        self._buffers = perf.choose_buffers(plan.mode, machine.n_cpus, self._memory)
        self._ring_kb = collect.ring_kb(machine.n_possible_cpus, self._memory)
        # The data in the ring buffers must still fit on the disk when the recording stops.
        buffered = self._ring_kb * 1024 * machine.n_cpus if plan.recorder == "bpf" else 0
        if self._uses_perf:
            buffered += (self._buffers.data + self._buffers.aux) * machine.n_cpus
        self._disk_reserve = min(buffered, capture.free_bytes() // 4) + 4 * perf.MIB
        self._begin = 0.0
        self._control: Control | None = None
        self._throttled: throttling.Watch | None = None
        self._listening: listening.Watch | None = None
        self.counts: probes.Counts | None = None

    def _tracefs(self) -> Path:
        tracefs = self._machine.tracefs()
        assert tracefs is not None  # preflight saw it
        return tracefs

    @property
    def _uses_perf(self) -> bool:
        return self._plan.mode == "intel-pt" or self._plan.recorder == "bpftrace"

    @property
    def _manifest(self) -> dict[str, Any]:
        return self._capture.manifest

    def run(self) -> str:
        """Record; returns ``manifest.stopped_by``. The manifest is final afterwards.

        Raises RecordError when the recording could not begin.
        """
        affinity = os.sched_getaffinity(0)
        if self._plan.cpus:
            try:
                os.sched_setaffinity(0, self._plan.cpus)
            except OSError as e:
                raise Usage("--cpus: none of these cores is there", "lscpu lists them") from e
        stopped_by = "error: the recorder failed"
        try:
            self._start()
            stopped_by = self._record(affinity)
        except Interrupted:
            stopped_by = "signal"
        except RecordError as e:
            stopped_by = f"error: {e}"
            raise
        finally:
            self._stop(stopped_by)
            os.sched_setaffinity(0, affinity)
        return stopped_by

    # -- start --------------------------------------------------------------------------

    def _start(self) -> None:
        plan = self._plan
        self._progress.say(f"starting to record (mode {plan.mode}, recorder {plan.recorder})")
        self._manifest["recorder_kind"] = plan.recorder
        self._step("begin")
        self._start_clock()
        if plan.recorder == "bpf":
            self._start_with_bpf()
        else:
            self._start_with_bpftrace()

    def _wait(self, condition: Callable[[], bool], step: str) -> None:
        self._supervisor.wait_for(condition, step)
        self._step(step)

    def _start_clock(self) -> None:
        program = clock.find(self._machine.path)
        assert program is not None  # preflight saw it
        phcs = [
            n["phc"]
            for n in self._plan.nics
            if n["phc"] is not None and self._plan.iface in (None, n["name"])
        ]
        output = self._dir / "clock.tsv"
        self._child("clock", clock.argv(program, output, phcs), ["--help"]).release()
        self._wait(lambda: clock.has_started(output), "starting nsight-clock")

    def _start_with_bpf(self) -> None:
        """nsight-collect, and perf for Intel PT alone."""
        plan = self._plan
        program = collect.find(self._machine.path)
        assert program is not None  # preflight saw it
        packets = self._payload_child()
        records = self._dir / collect.DIRECTORY
        command = collect.argv(
            program,
            plan.filters,
            records,
            self._ring_kb,
            activity=plan.mode == "tracepoints",
            hardware_stamps=any(n["phc"] is not None for n in plan.nics),
            **plan.of_collector(),
            more=intervals.argv(plan.intervals),
        )
        if plan.mode == "tracepoints":
            self._manifest["syscalls"] = plan.syscalls
        collector = self._child("collect", command, ["--help"])
        self._capture.save()
        if plan.mode == "intel-pt":
            self._start_perf([])
        self._start_packets(packets)
        collector.release()
        self._wait(lambda: collect.has_started(collector.log), "attaching the BPF programs")
        if plan.mode == "tracepoints":
            self._manifest["drop_reasons"] = collect.drop_reasons(collector.log)
            self._manifest["counters"], self._manifest["counters_missing"] = collect.counters(collector.log)
        if self._control:
            self._control.send("enable")
            self._wait(self._control.acknowledged, "enabling perf")

    def _start_with_bpftrace(self) -> None:
        plan = self._plan
        script = self._script()
        packets = self._payload_child()
        events = self._dir / "events.tsv"
        probe = self._child(
            "bpftrace",
            probes.argv(script, plan.filters, events),
            ["--version"],
            drain_signal=probes.DRAIN_SIGNAL,
            env=probes.environment(self._machine.n_cpus, self._memory),
        )
        self._manifest["probes"] = {"script": script.name, "sha256": _sha256(script)}
        self._capture.save()
        self._start_perf([os.getpid(), *(c.pid for c in self._supervisor.children)])
        self._start_packets(packets)
        probe.release()
        self._wait(lambda: probes.is_attaching(probe.pid, events), "compiling the probes")
        assert self._control is not None
        self._control.send("enable")
        self._wait(self._control.acknowledged, "enabling perf")
        self._wait(lambda: probes.has_started(events), "attaching the probes")

    def _start_perf(self, quiet_pids: list[int]) -> None:
        """Start perf with all its events open but disabled."""
        control = self._control = Control()
        recorder = self._child(
            "perf", self._perf_argv(quiet_pids, control.perf_option()), ["--version"], pass_fds=control.fds()
        )
        recorder.release()
        # The answer shows that every event is open. In mode intel-pt perf's tracking event runs from then on,
        # and "disable" would stop it: memory maps of programs that start before the recording does, the
        # probes among them, would be missing and their code undecodable. perf has "ping" since 5.12; in mode
        # tracepoints "disable" changes nothing.
        control.send("ping" if self._plan.mode == "intel-pt" else "disable")
        self._wait(control.acknowledged, "starting perf")

    def _start_packets(self, packets: Child | None) -> None:
        if packets:
            packets.release()
            self._wait(
                lambda: self._capture.size("payload.pcap") > 0 or b"listening on" in _head(packets.log),
                "starting tcpdump",
            )

    def _step(self, name: str) -> None:
        """Note when a step was done, so that the manifest can explain a slow start."""
        self._manifest.setdefault("steps", []).append(
            {"step": name, "monotonic_ns": time.clock_gettime_ns(time.CLOCK_MONOTONIC)}
        )

    def _child(self, name: str, argv: list[str], version: list[str], **options: Any) -> Child:
        """A gated child, entered in the manifest."""
        resolved = shutil.which(argv[0], path=self._machine.path)
        log = self._dir / f"{_log_name(name)}.log"
        child = Child(name, argv, log, cpus=self._plan.cpus, path=self._machine.path, **options)
        self._supervisor.add(child)
        first_line = "" if name in ("clock", "collect") else self._machine.version_of([argv[0], *version])[1]
        self._manifest.setdefault("tools", {})[name] = {
            "version": first_line or __version__,
            "path": resolved,
            "argv": argv,
            "env": options.get("env") or {},
            "pid": child.pid,
            "exit": None,
        }
        return child

    def _script(self) -> Path:
        """The probes' script: one of NSight's, or one in the capture that is combined from two."""
        directory = probes.script_directory()
        script = directory / probes.choose_script(self._tracefs())
        if self._plan.lwip is None:
            return script
        both = self._dir / "probes.bt"
        lwip = (directory / probes.LWIP_SCRIPT).read_text()
        both.write_text(probes.with_lwip(script.read_text(), lwip, self._plan.lwip))
        return both

    def _payload_child(self) -> Child | None:
        if self._plan.snaplen is None:
            return None
        argv = payload.argv(
            self._dir / "payload.pcap", self._plan.snaplen, self._plan.iface, self._plan.filters.port
        )
        path = self._plan.netns.path
        assert path is not None  # cli checked it
        return self._child("tcpdump", argv, ["--version"], before_exec=lambda: enter(path))

    def _perf_argv(self, quiet_pids: list[int], control: str) -> list[str]:
        output = self._dir / "perf.data"
        self._manifest["perf_buffers"] = {
            "data_bytes_per_cpu": self._buffers.data,
            "aux_bytes_per_cpu": self._buffers.aux,
            "why": self._buffers.why,
        }
        if self._plan.mode == "intel-pt":
            event, clock = perf.intel_pt_event(self._machine.root), perf.clock_map_options(self._machine.path)
            return perf.argv_pt(output, event, self._buffers, control, clock)
        have, missing = perf.existing(self._tracefs())
        perf.copy_formats(self._tracefs(), have, self._dir / "formats")
        self._manifest["missing_tracepoints"] = [t.name for t in missing]
        return perf.argv_trace(output, have, self._buffers, quiet_pids, control)

    # -- record -------------------------------------------------------------------------

    def _record(self, affinity: set[int]) -> str:
        plan = self._plan
        self._throttled = throttling.Watch(self._machine.root)
        self._listening = listening.Watch(self._machine.root, plan.filters.netns_inum)
        self._manifest["start"] = self._clocks.now()
        self._begin = time.monotonic()
        self._capture.save()
        until = f"{plan.duration:g} s" if plan.duration else "until Ctrl-C"
        if plan.command:
            until = f"until {plan.command[0]} ends" + (f", at most {until}" if plan.duration else "")
        self._progress.say(f"recording {until}")
        deadline = self._begin + plan.duration if plan.duration else None
        if not plan.command:
            return self._supervisor.watch(deadline, (), self._tick)
        try:
            command = subprocess.Popen(
                plan.command, preexec_fn=lambda: os.sched_setaffinity(0, affinity), umask=plan.umask
            )
        except OSError as e:
            raise Usage(
                f"{plan.command[0]}: {e.strerror}", "give a program that can be executed after --"
            ) from e
        pidfd = os.pidfd_open(command.pid)
        try:
            return self._supervisor.watch(deadline, (pidfd,), self._tick)
        finally:
            os.close(pidfd)
            self._end_command(command)

    def _end_command(self, command: subprocess.Popen[bytes]) -> None:
        if command.poll() is None:
            command.terminate()
            try:
                command.wait(_COMMAND_GRACE_S)
            except subprocess.TimeoutExpired:
                command.kill()
                command.wait()
        self._manifest["command_exit"] = command.returncode

    def _tick(self) -> str | None:
        """Several times a second: watch the disk, redraw."""
        sizes = " ".join(
            f"{name.split('.')[0]} {human_bytes(self._capture.size(name))}"
            for name in ("perf.data", "events.tsv", collect.DIRECTORY)
            if self._capture.size(name)
        )
        self._progress.draw(time.monotonic() - self._begin, self._plan.duration, sizes)
        free = self._capture.free_bytes()
        if free < self._disk_reserve:
            if self._control:
                # Only data that perf has buffered remains to be written while the probes stop.
                self._control.send("disable")
            return f"error: the disk is nearly full ({human_bytes(free)} free)"
        return None

    # -- stop ---------------------------------------------------------------------------

    def _stop(self, stopped_by: str) -> None:
        manifest = self._manifest
        manifest["stop"] = self._clocks.now()
        if self._throttled:
            manifest["throttled"] = self._throttled.told()
        if self._listening:
            manifest["listen_overflows"] = self._listening.told()
        by_name = {c.name: c for c in self._supervisor.children}
        self._capture.release_half_of_reserve()
        for name in ("collect", "bpftrace", "tcpdump", "perf", "clock"):
            if name in by_name:
                if name == "tcpdump":
                    self._wait_for_packets()
                self._supervisor.stop(by_name[name], _STOP_TIMEOUT_S[name])
                manifest["tools"][name]["exit"] = by_name[name].exit
                self._step(f"stopped {name}")
        if self._control:
            self._control.close()
        manifest["stopped_by"] = stopped_by
        self.counts = tally.enter(manifest, plan=self._plan, directory=self._dir)
        cut = list(self._supervisor.died)
        if "start" not in manifest:
            cut.append("the recording did not begin")
        manifest["cut"] = cut
        manifest["state"] = "cut" if cut else "complete"
        self._capture.release_reserve()
        try:
            self._capture.save()
        except OutputError as e:
            self._progress.warn(f"{e}; the capture still says that it was cut")

    def _wait_for_packets(self) -> None:
        """Wait until tcpdump has all packets that came before the end."""
        stopped = self._manifest["stop"]["monotonic_ns"]
        age = (time.clock_gettime_ns(time.CLOCK_MONOTONIC) - stopped) / 1e9
        time.sleep(max(payload.BLOCK_AGE_S - age, 0))


def _log_name(tool: str) -> str:
    return {"bpftrace": "events", "tcpdump": "payload"}.get(tool, tool)


def _head(path: Path) -> bytes:
    try:
        with open(path, "rb") as f:
            return f.read(4096)
    except OSError:
        return b""


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
