# SPDX-License-Identifier: GPL-2.0-only
"""Recordings as the BPF recorder would write them on hardware that a virtual machine does not have, with one cause of jitter each.

Thread ``steps`` works on core 1: each step computes for 60 us, sleeps in futex until thread ``helper``, which is always on core 0,
wakes it 40 us later, and computes for 20 us. Every EVERY-th step meets the cause. All events are written to record files.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from machinery.made_up import record_files as rf
from machinery.made_up.capture import manifest
from machinery.made_up.tables import table
from nsight_report import losses
from nsight_report.pipeline import Pipeline
from nsight_report.stage import Options
from nsight_report.stages import BY_NAME

from .score import EVERY, Cause

US = 1_000
START, PERIOD = 5_000_000_000_000, 1_000 * US
STEPS, HELPER, WORKER = 100, 101, 300
FUTEX, SLEEP = 202, 230
#: enum nsr_vector of tools/bpf/record.h, and the kernel's number of the softirq.
CALL_FUNCTION, RCU = 2, 9
#: Exit latencies of the C-states in the manifest, in us.
EXITS = (2, 133)
USUAL_KHZ = 3_000_000


@dataclass
class Step:
    """One step at ``t``, by default a usual one: the C-state of its core, and its exit latency; the extra computing time before
    and after it sleeps; ``more``: records of core 1 that the cause adds.
    """

    t: int
    state: int = 0
    exit_ns: int = EXITS[0] * US
    longer_ns: int = 0
    longer_after_ns: int = 0
    more: list[bytes] = field(default_factory=list)


def _c_state(step: Step) -> None:
    """It is woken on a core that is in the deeper C-state."""
    step.state, step.exit_ns = 1, EXITS[1] * US


def _frequency(step: Step) -> None:
    """Its core is at a third of its frequency: 60 us take 180, and 20 us 60."""
    step.longer_ns, step.longer_after_ns = 120 * US, 40 * US
    low, usual = (
        rf.frequency(step.t - 5 * US, USUAL_KHZ // 3, 1),
        rf.frequency(step.t + 500 * US, USUAL_KHZ, 1),
    )
    step.more += [low, usual]


def _steal(step: Step) -> None:
    """The host has its core for 300 us: the tick comes then, and the scheduler reports it at the next context switch."""
    step.longer_ns = 300 * US
    tick, switch = step.t + 350 * US, step.t + 360 * US
    step.more += [rf.steal(switch, 300 * US, 1), rf.pair("VECTOR", tick, tick + US, 0)]


def _kworker(step: Step) -> None:
    """A workqueue thread has its core for 200 us."""
    step.longer_ns = 200 * US
    step.more += [
        rf.waking(step.t + 20 * US, WORKER, HELPER, 1),
        rf.switch(step.t + 20 * US, STEPS, WORKER, state=0x100),
        rf.switch(step.t + 220 * US, WORKER, STEPS, state=0x80),
    ]


def _moved(step: Step) -> None:
    """The kernel moves pages that it touches to its memory node."""
    step.longer_ns = 150 * US
    touched = step.t + 10 * US
    step.more += [
        rf.fault(touched, 0x7F0000001000, 7, True),
        rf.memory(touched + US, touched + 150 * US, STEPS, 2),
    ]


def _shootdown(step: Step) -> None:
    """Another core makes it flush its TLB 40 times, 3 us each."""
    step.longer_ns = 120 * US
    begins = [step.t + 5 * US + n * 4 * US for n in range(40)]
    step.more += [rf.pair("VECTOR", at, at + 3 * US, CALL_FUNCTION) for at in begins]


def _device(step: Step) -> None:
    """A device's interrupt takes 150 us."""
    step.longer_ns = 150 * US
    step.more += [rf.pair("IRQ", step.t + 10 * US, step.t + 160 * US, 40)]


def _rcu(step: Step) -> None:
    """RCU callbacks run for 180 us after a tick."""
    step.longer_ns = 181 * US
    tick = step.t + 10 * US
    step.more += [rf.pair("VECTOR", tick, tick + US, 0), rf.pair("SOFTIRQ", tick + US, tick + 181 * US, RCU)]


#: The function that injects each cause.
CAUSES: dict[Cause, Callable[[Step], None]] = {
    Cause("C-state", r"C-state exit latency \(A\)"): _c_state,
    Cause("frequency", r"CPU frequency and power \(A\)"): _frequency,
    Cause("steal", r"Host took the core \(A\)"): _steal,
    Cause("TLB shootdown", r"Inter-processor interrupts \(A\)"): _shootdown,
    Cause("device interrupt", r"Device interrupts \(A\)"): _device,
    Cause("RCU", r"RCU \(A\)"): _rcu,
    Cause("kworker", r"kworker \(A\)|OS threads \(A\)"): _kworker,
    Cause("NUMA balancing", r"NUMA balancing and page migration \(A\)"): _moved,
}


def _records(step: Step) -> tuple[int, dict[int, list[bytes]]]:
    """When it ends, and the records of both cores."""
    asks = step.t + 60 * US + step.longer_ns
    woken = asks + 40 * US
    runs = woken + step.exit_ns
    end = runs + 20 * US + step.longer_after_ns
    one = [
        *step.more,
        rf.switch(step.t - US, 0, STEPS),
        rf.switch_syscall(asks, STEPS, 0, asks - US, FUTEX),
        rf.pair("IDLE", asks + US, runs - US, step.state),
        rf.switch(runs, 0, STEPS),
        rf.syscall(asks - US, runs + US, STEPS, FUTEX),
        rf.switch_syscall(end + 2 * US, STEPS, 0, end + US, SLEEP),
    ]
    return end, {0: [rf.waking(woken, STEPS, HELPER, 1)], 1: one}


def _time(record: bytes) -> int:
    return int.from_bytes(record[:8], "little") >> 16


def write(directory: Path, cause: Cause, steps: int) -> tuple[Path, Path]:
    """``steps.nsight`` and ``steps.csv`` in ``directory``; beside that, ``steps.csv.log`` says when the cause acted."""
    capture, file = directory / "steps.nsight", directory / "steps.csv"
    shutil.rmtree(capture, ignore_errors=True)
    capture.mkdir()
    cores: dict[int, list[bytes]] = {
        0: [rf.switch(START - 50 * US, 0, HELPER)],
        1: [rf.frequency(START - 40 * US, USUAL_KHZ, 1), rf.switch(START - 30 * US, STEPS, 0)],
    }
    lines, acted = [f"# thread {STEPS}", "name,start,stop"], []
    for n in range(steps):
        step = Step(START + n * PERIOD)
        hit = n % EVERY == EVERY - 1
        if hit:
            CAUSES[cause](step)
        end, made = _records(step)
        lines.append(f"step,{step.t},{end}")
        acted += [f"{step.t} {end}"] if hit else []
        for core, rows in made.items():
            cores[core] += rows
    last = START + steps * PERIOD
    names = ((STEPS, STEPS, b"steps"), (HELPER, STEPS, b"helper"), (WORKER, WORKER, b"kworker/1:1"))
    machine = rf.whole(rf.NO_CPU, b"".join(rf.task(START - 60 * US, *name) for name in names), START)
    rf.write(
        capture,
        machine,
        **{
            f"cpu{core}": rf.whole(core, b"".join(sorted(rows, key=_time)), START)
            for core, rows in cores.items()
        },
    )
    file.write_text("\n".join(lines) + "\n")
    Path(f"{file}.log").write_text("\n".join(acted) + "\n")
    _describe(capture, last)
    return capture, file


def _describe(capture: Path, last: int) -> None:
    """Manifest and clock: one cycle a ns."""
    states = [{"name": f"C{n}", "latency_us": us, "disabled": False} for n, us in enumerate(EXITS)]
    told = manifest(
        recorder_kind="bpf", syscalls="messages", page_fault_ns=500, core_khz={"0": USUAL_KHZ, "1": USUAL_KHZ},
        start={"monotonic_ns": START - 60 * US}, stop={"monotonic_ns": last}, host={"idle_states": states},
    )  # fmt: skip
    (capture / "manifest.json").write_text(json.dumps(told))
    (capture / "clock.tsv").write_text("stand-in\n")
    clock = {"domain": "monotonic", "tsc_start": START - PERIOD, "tsc_end": last + PERIOD, "anchor_tsc": START, "anchor_ns": START,
             "mult": 1024, "shift": 10, "source": "timekeeper"}  # fmt: skip
    stage = BY_NAME["clocks"]
    made = {of: table(of, [clock] if of == "clock_map" else []) for of in stage.tables}
    pipeline = Pipeline(capture, Options())
    pipeline.store.save(
        "clocks", {**made, "losses-clocks": losses.Ledger("clocks").table()}, pipeline._made_from(stage)
    )
