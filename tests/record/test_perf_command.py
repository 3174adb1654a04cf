# SPDX-License-Identifier: GPL-2.0-only
"""The perf command line of each mode, and its buffers."""

from pathlib import Path

import made_up_machine
import pytest
from nsight_record import perf
from nsight_record.perf import MIB, Buffers, Tracepoint

BUFFERS = Buffers(data=16 * MIB, aux=64 * MIB, why="")


def events_of(argv):
    return [argv[i + 1] for i, word in enumerate(argv) if word == "-e"]


def test_trace_stamps_in_the_clock_of_the_probes():
    argv = perf.argv_trace(Path("out"), perf.TRACEPOINTS, BUFFERS, [], "fd:3,4")
    assert argv[argv.index("-k") + 1] == "CLOCK_MONOTONIC"


def test_trace_leaves_out_system_calls_of_the_recording_programs_and_nothing_else_of_them():
    argv = perf.argv_trace(Path("out"), perf.TRACEPOINTS, BUFFERS, [10, 11], "fd:3,4")
    for event in ("raw_syscalls:sys_enter", "raw_syscalls:sys_exit"):
        at = argv.index(event)
        assert argv[at + 1 : at + 4] == ["--exclude-perf", "--filter", "common_pid != 10 && common_pid != 11"]
    assert argv.count("--exclude-perf") == argv.count("--filter") == 2


def test_trace_begins_disabled_and_is_enabled_by_the_recorder():
    argv = perf.argv_trace(Path("out"), perf.TRACEPOINTS, BUFFERS, [], "fd:3,4")
    assert argv[argv.index("-D") + 1] == "-1"
    assert argv[argv.index("--control") + 1] == "fd:3,4"


def test_only_existing_tracepoints_are_asked_for(tmp_path):
    made_up_machine.build(tmp_path)
    tracefs = tmp_path / "sys/kernel/tracing"
    (tracefs / "events/napi/napi_poll/id").unlink()
    have, missing = perf.existing(tracefs)
    assert missing == [Tracepoint("napi", "napi_poll")]
    assert len(have) == len(perf.TRACEPOINTS) - 1
    assert "napi:napi_poll" not in events_of(perf.argv_trace(Path("out"), have, BUFFERS, [], "fd:3,4"))


def test_every_entry_has_its_exit():
    names = {t.name for t in perf.TRACEPOINTS}
    pairs = {("_entry", "_exit"), ("sys_enter", "sys_exit")}
    for entry, exit_ in pairs:
        for name in names:
            if name.endswith(entry):
                assert name.removesuffix(entry) + exit_ in names


def test_pt_has_the_kernel_text_the_switches_and_no_clock_option():
    argv = perf.argv_pt(Path("out"), "intel_pt/cyc=1/", BUFFERS, "fd:3,4")
    assert {"-a", "--kcore", "--switch-events"} <= set(argv)
    assert "-k" not in argv  # perf refuses it together with intel_pt
    # In pages of 4 KiB: 16 MiB are 4096, 64 MiB are 16384.
    assert argv[argv.index("-m") + 1] == "4096,16384"
    assert events_of(argv) == ["intel_pt/cyc=1/"]


@pytest.mark.parametrize(
    ("script", "options"),
    [
        ('case "$*" in *--clock-map*) exit 0;; esac; exit 1', ["--clock-map"]),
        ("echo 'unknown option' >&2; exit 129", []),
        ("echo 'cannot read the clock' >&2; exit 234", []),
    ],
)
def test_the_clock_map_is_recorded_by_a_perf_that_can(tmp_path, script, options):
    program = tmp_path / "perf"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    assert perf.clock_map_options(str(tmp_path)) == options
    argv = perf.argv_pt(
        Path("out"), "intel_pt/cyc=1/", BUFFERS, "fd:3,4", perf.clock_map_options(str(tmp_path))
    )
    assert argv.count("--clock-map") == len(options)


def test_without_perf_there_is_no_clock_map(tmp_path):
    assert perf.clock_map_options(str(tmp_path)) == []


def test_pt_terms_are_those_the_processor_has(tmp_path):
    device = "sys/bus/event_source/devices/intel_pt"
    made_up_machine.put(tmp_path, f"{device}/format/noretcomp", "config:11")
    assert perf.intel_pt_event(tmp_path) == "intel_pt/noretcomp=1/"
    made_up_machine.put(tmp_path, f"{device}/format/cyc", "config:1")
    made_up_machine.put(tmp_path, f"{device}/caps/psb_cyc", "0\n")
    assert perf.intel_pt_event(tmp_path) == "intel_pt/noretcomp=1/"
    made_up_machine.put(tmp_path, f"{device}/caps/psb_cyc", "1\n")
    assert perf.intel_pt_event(tmp_path) == "intel_pt/cyc=1,noretcomp=1/"


def test_buffers_shrink_with_the_memory():
    # 16 MiB * 2 cores = 32 MiB, a sixteenth of 512 MiB.
    assert perf.choose_buffers("tracepoints", 2, 512 * MIB) == Buffers(16 * MIB, 0, "default")
    # 16 * 15 MiB / 16 / 2 = 7.5 MiB a core; the power of two below is 4 MiB.
    assert perf.choose_buffers("tracepoints", 2, 240 * MIB).data == 4 * MIB
    # (4 + 64) MiB * 4 cores = 272 MiB, an eighth of 2176 MiB.
    assert perf.choose_buffers("intel-pt", 4, 2176 * MIB).aux == 64 * MIB
    small = perf.choose_buffers("intel-pt", 4, 1024 * MIB)  # 32 MiB a core
    assert (small.aux, small.data) == (16 * MIB, 2 * MIB)
    assert "1024 MiB" in small.why


def test_buffers_are_powers_of_two_in_pages():
    for cores in (1, 3, 64, 256):
        for memory in (256 * MIB, 3000 * MIB, 1 << 40):
            for mode in ("tracepoints", "intel-pt"):
                b = perf.choose_buffers(mode, cores, memory)
                assert b.data & (b.data - 1) == 0
                assert b.aux & (b.aux - 1) == 0


def test_formats_are_copied(tmp_path):
    made_up_machine.put(tmp_path, "t/events/sched/sched_switch/format", "name: sched_switch\n")
    perf.copy_formats(tmp_path / "t", [Tracepoint("sched", "sched_switch")], tmp_path / "formats")
    assert (tmp_path / "formats/sched/sched_switch").read_text() == "name: sched_switch\n"


def test_trace_asks_for_no_records_of_bpf_programs_that_perf_could_not_read():
    assert "--no-bpf-event" in perf.argv_trace(Path("out"), perf.TRACEPOINTS, BUFFERS, [], "fd:3,4")
