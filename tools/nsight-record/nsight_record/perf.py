# SPDX-License-Identifier: GPL-2.0-only
"""The perf command line for each mode, and the reasons for its options."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")
MIB = 1 << 20
SNAPSHOT_SIGNAL = signal.SIGUSR2
#: A recording of `true` takes less than a second.
CLOCK_MAP_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Tracepoint:
    """A tracepoint for mode tracepoints. Without a ``required`` one there are no contexts at all."""

    system: str
    event: str
    required: bool = False

    @property
    def name(self) -> str:
        """The name in perf's form."""
        return f"{self.system}:{self.event}"


def _events(system: str, names: str, *, required: bool = False) -> list[Tracepoint]:
    return [Tracepoint(system, name, required) for name in names.split()]


# irq_vectors:irq_work_* is not in the list: the kernel refuses to sample irq_work_exit, because every sample
# itself raises an irq_work. An entry without its exit is no context.
TRACEPOINTS: tuple[Tracepoint, ...] = (
    *_events("sched", "sched_switch sched_waking", required=True),
    *_events("sched", "sched_wakeup sched_wakeup_new sched_migrate_task"),
    *_events("sched", "sched_process_fork sched_process_exec sched_process_exit"),
    *_events("irq", "irq_handler_entry irq_handler_exit softirq_entry softirq_exit", required=True),
    *_events(
        "irq_vectors",
        " ".join(
            f"{v}_{end}"
            for v in ("local_timer", "reschedule", "call_function", "call_function_single")
            for end in ("entry", "exit")
        ),
    ),
    *_events("raw_syscalls", "sys_enter sys_exit", required=True),
    *_events("napi", "napi_poll"),
    *_events("timer", "hrtimer_expire_entry hrtimer_expire_exit timer_expire_entry timer_expire_exit"),
    *_events("exceptions", "page_fault_user page_fault_kernel"),
    *_events("power", "cpu_idle"),
)


def existing(tracefs: Path) -> tuple[list[Tracepoint], list[Tracepoint]]:
    """(events that this kernel has, events that are missing)."""
    have = [t for t in TRACEPOINTS if (tracefs / "events" / t.system / t.event / "id").exists()]
    return have, [t for t in TRACEPOINTS if t not in have]


def copy_formats(tracefs: Path, tracepoints: Iterable[Tracepoint], to: Path) -> None:
    """Save the formats as ``to/SYSTEM/EVENT``.

    perf writes them at the end of its file: a perf.data cut by SIGKILL has none.
    """
    for t in tracepoints:
        (to / t.system).mkdir(parents=True, exist_ok=True)
        text = (tracefs / "events" / t.system / t.event / "format").read_bytes()
        (to / t.system / t.event).write_bytes(text)


@dataclass(frozen=True)
class Buffers:
    """Ring buffer bytes of one core, and the reason for that size."""

    data: int
    aux: int
    why: str


def _power_of_two_below(n: int) -> int:
    return 1 << max(0, n.bit_length() - 1)


def choose_buffers(mode: str, n_cpus: int, mem_available: int) -> Buffers:
    """Ring buffers per core.

    tracepoints: a busy core produces some 300,000 events/s of about 80 bytes, 24 MB/s. When every core is
    busy, perf itself may wait in a run queue for a few hundred ms, and that is when the recording matters: 16
    MiB hold 0.7 s. intel-pt: a core writes 100-1000 MB/s of AUX data, so no buffer holds long; 64 MiB cover
    the writer's own scheduling delays of some 100 ms. All buffers together never take more than a sixteenth
    (tracepoints) or an eighth (intel-pt) of the free memory: the server's own work comes first.
    """
    data, aux, share = (16 * MIB, 0, 16) if mode == "tracepoints" else (4 * MIB, 64 * MIB, 8)
    allowed = mem_available // share // n_cpus
    why = "default"
    if data + aux > allowed:
        why = f"limited to 1/{share} of the available memory, {mem_available // MIB} MiB, on {n_cpus} cores"
        if aux:
            aux = max(MIB, _power_of_two_below(allowed * 15 // 16))
            data = max(MIB // 2, _power_of_two_below(allowed // 16))
        else:
            data = max(MIB // 2, _power_of_two_below(allowed))
    return Buffers(data, aux, why)


def mem_available(root: Path = Path("/")) -> int:
    """Bytes of MemAvailable; a cautious 1 GiB when it cannot be read."""
    try:
        match = re.search(r"^MemAvailable:\s*(\d+) kB", (root / "proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    return int(match.group(1)) * 1024 if match else 1 << 30


def has_intel_pt(root: Path = Path("/")) -> bool:
    """Whether the kernel offers Intel PT."""
    return (root / "sys/bus/event_source/devices/intel_pt").is_dir()


def intel_pt_event(root: Path = Path("/")) -> str:
    """The intel_pt event with the terms that this processor supports.

    cyc=1: cycle-accurate times; without them several calls share one time. noretcomp=1: every return has its
    own packet, so the decoder can resynchronise after an overflow without having seen the call.
    """
    device = root / "sys/bus/event_source/devices/intel_pt"
    terms = []
    if (device / "format/cyc").exists() and _flag(device / "caps/psb_cyc"):
        terms.append("cyc=1")
    if (device / "format/noretcomp").exists():
        terms.append("noretcomp=1")
    return f"intel_pt/{','.join(terms)}/"


def _flag(path: Path) -> bool:
    try:
        return path.read_text().strip() not in ("", "0")
    except OSError:
        return False


def exclude_filter(pids: Sequence[int]) -> str:
    """Ftrace filter that excludes system calls of these threads."""
    return " && ".join(f"common_pid != {pid}" for pid in pids)


def argv_trace(
    output: Path, tracepoints: Sequence[Tracepoint], buffers: Buffers, exclude: Sequence[int], control: str
) -> list[str]:
    """perf for mode tracepoints.

    -k CLOCK_MONOTONIC: the same clock as the probes' timestamps. -D -1 with --control: events are opened
    disabled, and enabled when the probes are about to start. --exclude-perf and the filter, on system calls
    only: every write of perf would produce two events, which make perf write again (700,000 events/s were
    seen). The same applies to the other recording programs. Their context switches stay in: they can be what
    delayed a message. --synth task: names of the running threads, but not their memory maps, which are not
    needed in this mode. --no-bpf-event: where another perf records the whole machine too, records of BPF
    programs end with garbage (the kernel counts their identification twice: perf_event_ksymbol_output() does
    not put header.size back), and perf script gives up at "failed to process type: 17 [Bad address]", or 18.
    These records are not needed in this mode either. Only type 18 (BPF_EVENT) can be left out; type 17
    (KSYMBOL) stays, and nsight-report skips it. --buildid-mmap: if another perf requests build ids (newer
    ones do so by default), the kernel marks the mappings of every recording as if they had one
    (perf_event_mmap_output() does not put header.misc back), and perf script then fails on what it takes for
    a build id: "assertion failed at util/build-id.c". A recording that has them is right in both cases.
    """
    argv = ["perf", "record", "-a", "-k", "CLOCK_MONOTONIC", "-m", str(buffers.data // PAGE)]
    argv += ["-D", "-1", "--control", control, "--no-buildid", "--no-buildid-cache", "--synth", "task"]
    argv += ["--no-bpf-event", "--buildid-mmap", "-o", str(output)]
    for t in tracepoints:
        argv += ["-e", t.name]
        if t.system == "raw_syscalls":
            argv += ["--exclude-perf"]
            if exclude:
                argv += ["--filter", exclude_filter(exclude)]
    return argv


def argv_pt(
    output: Path, event: str, buffers: Buffers, control: str, clock_map: Sequence[str] = ()
) -> list[str]:
    """perf for mode intel-pt; ``clock_map``: see ``clock_map_options``.

    --kcore: the kernel changes its own text (static keys, probes), so the decoder needs the text as it was.
    --switch-events: which thread ran. No -k: perf refuses it together with intel_pt; the clock readings map
    perf's clock.
    """
    argv = ["perf", "record", "-a", "--kcore", "--switch-events", *clock_map]
    argv += ["-m", f"{buffers.data // PAGE},{buffers.aux // PAGE}"]
    argv += ["-D", "-1", "--control", control, "-o", str(output), "-e", event]
    return argv


def argv_pt_snapshots(output: Path, event: str, buffers: Buffers, control: str) -> list[str]:
    """perf for the flight recorder in mode intel-pt: AUX buffers are overwritten, SNAPSHOT_SIGNAL writes them and ends the file.

    No --kcore: perf cannot end a directory. --buildid-mmap: at the end of a file perf has no time to look for build ids.
    """
    argv = [
        "perf",
        "record",
        "-a",
        "--snapshot",
        "--switch-output=signal",
        "--switch-events",
        "--buildid-mmap",
    ]
    argv += ["-m", f"{buffers.data // PAGE},{buffers.aux // PAGE}"]
    argv += ["-D", "-1", "--control", control, "-o", str(output), "-e", event]
    return argv


def clock_map_options(path: str | None = None) -> list[str]:
    """``--clock-map`` if the perf on ``path`` has it and can read this machine's clock of events, else nothing.

    With it ``perf script --clock=realtime`` prints times of the system clocks, of Intel PT too. A test
    recording that keeps nothing shows it: perf refuses if it lacks the option or cannot read the clock.
    """
    program = find(path)
    if not program:
        return []
    argv = [program, "record", "-q", "--clock-map", "-e", "dummy:u", "-o", "/dev/null", "--", "true"]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=CLOCK_MAP_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [] if done.returncode else ["--clock-map"]


def find(path: str | None = None) -> str | None:
    """Where perf is."""
    return shutil.which("perf", path=path)
