# SPDX-License-Identifier: GPL-2.0-only
"""Preflight names what a machine lacks, and the fix; each case on a made-up machine."""

import made_up_machine
import pytest
from nsight_record import cli, clock, collect, preflight
from nsight_record.errors import EXIT_IO, EXIT_MISSING, Usage
from nsight_record.machine import ERROR, INFO, WARNING
from nsight_record.preflight import Request


@pytest.fixture
def machine(tmp_path):
    return made_up_machine.build(tmp_path / "root")


def check(machine, tmp_path, **options):
    return preflight.check(
        machine, Request(**{"mode": "tracepoints", "capture_parent": tmp_path, "duration": 0.001, **options})
    )


def only(findings):
    assert len(findings) == 1, findings
    return findings[0]


def test_machine_that_lacks_nothing_has_no_findings(machine, tmp_path):
    assert check(machine, tmp_path) == []


def test_not_root_is_an_error_with_sudo_as_fix(tmp_path):
    finding = only(check(made_up_machine.build(tmp_path / "root", euid=1000), tmp_path))
    assert finding.severity == ERROR
    assert "root" in finding.what
    assert "sudo" in finding.hint


def test_root_of_a_container_is_told_so(machine, tmp_path):
    made_up_machine.put(machine.root, "proc/self/status", "CapEff:\t00000000a80425fb\n")
    what = [f.what for f in check(machine, tmp_path) if f.severity == ERROR]
    assert any("CAP_SYS_ADMIN" in w for w in what)


@pytest.mark.parametrize(("number", "refused"), [(4026531836, False), (4026532201, True)])
def test_numbers_of_processes_must_be_those_of_the_kernel(machine, tmp_path, number, refused):
    (machine.root / "proc/self/ns").mkdir()
    (machine.root / "proc/self/ns/pid").symlink_to(f"pid:[{number}]")
    found = [f for f in check(machine, tmp_path) if f.severity == ERROR]
    assert ["--pid=host" in f.hint for f in found] == [True] * refused


def test_locked_memory_limit_counts_only_without_cap_ipc_lock(machine, tmp_path):
    # All bits but 14 (CAP_IPC_LOCK). 16 MiB and a page for each of 4 cores: (16384 + 4) * 4 = 65552 kB.
    made_up_machine.put(machine.root, "proc/self/status", "CapEff:\t000001ffffffbfff\n")
    finding = only(check(machine, tmp_path))
    assert finding.fix == ("sysctl", "kernel/perf_event_mlock_kb", "65552")


@pytest.mark.parametrize("program", ["perf", "bpftrace"])
def test_absent_program_is_named_with_its_package(machine, tmp_path, program):
    (machine.root / "bin" / program).unlink()
    finding = only(check(machine, tmp_path))
    assert finding.what == f"{program} is not installed"
    assert "apt install" in finding.hint
    assert finding.exit_code == EXIT_MISSING


def test_unbuilt_clock_reader_is_named_with_its_make_command(machine, tmp_path, monkeypatch):
    monkeypatch.setattr(clock, "find", lambda path=None: None)
    finding = only(check(machine, tmp_path))
    assert "nsight-clock" in finding.what
    assert finding.hint.startswith("make -C")


def test_perf_of_another_kernel_is_an_error(tmp_path):
    machine = made_up_machine.build(tmp_path / "root", run_version=lambda argv: (2, ""))
    assert only(check(machine, tmp_path)).what == "perf does not run on this kernel"


def test_bpf_recorder_needs_neither_perf_nor_bpftrace_nor_tracefs(machine, tmp_path, monkeypatch):
    monkeypatch.setattr(collect, "find", lambda path: "/somewhere/nsight-collect")
    for program in ("perf", "bpftrace"):
        (machine.root / "bin" / program).unlink()
    (machine.root / "sys/kernel/tracing").rename(machine.root / "elsewhere")
    assert check(machine, tmp_path, recorder="bpf") == []
    assert preflight.resolve_recorder("auto", machine, lwip=False) == "bpf"
    assert preflight.resolve_recorder("auto", machine, lwip=True) == "bpftrace"
    with pytest.raises(Usage, match="--lwip needs --recorder bpftrace"):
        preflight.resolve_recorder("bpf", machine, lwip=True)


def test_kernel_that_lacks_what_the_bpf_recorder_needs_is_told_and_auto_takes_the_other(
    machine, tmp_path, monkeypatch
):
    monkeypatch.setattr(collect, "find", lambda path: "/somewhere/nsight-collect")
    machine.run_version = lambda argv: (1, "error: this kernel lacks tracepoint sk_data_ready")
    (found,) = check(machine, tmp_path, recorder="bpf")
    assert (found.what, found.severity) == ("this kernel lacks tracepoint sk_data_ready", ERROR)
    assert "--recorder bpftrace" in found.hint
    assert preflight.resolve_recorder("auto", machine, lwip=False) == "bpftrace"
    assert preflight.resolve_recorder("bpf", machine, lwip=False) == "bpf"


def test_error_of_the_bpf_recorder_is_told_and_not_what_it_can_do_without(tmp_path, monkeypatch):
    machine = made_up_machine.build(tmp_path / "root", run_version=None)
    program = machine.root / "bin/nsight-collect"
    program.write_text(
        "#!/bin/sh\necho missing mm_compaction_end\necho error: this kernel lacks tracepoint x >&2\nexit 1\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(collect, "find", lambda path: str(program))
    (found,) = check(machine, tmp_path, recorder="bpf")
    assert found.what == "this kernel lacks tracepoint x"


def test_unbuilt_bpf_recorder_is_told_and_auto_takes_the_other(machine, tmp_path, monkeypatch):
    monkeypatch.setattr(collect, "find", lambda path: None)
    (found,) = check(machine, tmp_path, recorder="bpf")
    assert found.what == "nsight-collect is not built"
    assert preflight.resolve_recorder("auto", machine, lwip=False) == "bpftrace"


def test_tcpdump_is_needed_only_for_payload(machine, tmp_path):
    (machine.root / "bin/tcpdump").unlink()
    assert check(machine, tmp_path) == []
    assert "tcpdump" in only(check(machine, tmp_path, payload=True)).what


def test_unmounted_tracefs_can_be_fixed(machine, tmp_path):
    (machine.root / "sys/kernel/tracing").rename(machine.root / "gone")
    finding = only(check(machine, tmp_path))
    assert finding.severity == ERROR
    assert "mount -t tracefs" in finding.hint
    assert finding.fix == ("mount", "tracefs", "/sys/kernel/tracing")


def test_tracefs_below_debugfs_is_accepted(machine, tmp_path):
    (machine.root / "sys/kernel/debug").mkdir()
    (machine.root / "sys/kernel/tracing").rename(machine.root / "sys/kernel/debug/tracing")
    assert check(machine, tmp_path) == []


def test_missing_required_tracepoint_is_an_error_and_an_optional_one_is_not(machine, tmp_path):
    events = machine.root / "sys/kernel/tracing/events"
    (events / "napi/napi_poll/id").unlink()
    assert only(check(machine, tmp_path)).severity == INFO
    (events / "raw_syscalls/sys_enter/id").unlink()
    errors = [f.what for f in check(machine, tmp_path) if f.severity == ERROR]
    assert errors == ["the kernel lacks the tracepoint raw_syscalls:sys_enter"]


def test_kernel_without_btf_is_an_error(machine, tmp_path):
    (machine.root / "sys/kernel/btf/vmlinux").unlink()
    assert "BTF" in only(check(machine, tmp_path)).what


def test_lockdown_integrity_is_harmless_with_message_tracepoints(machine, tmp_path):
    made_up_machine.put(machine.root, "sys/kernel/security/lockdown", "none [integrity] confidentiality\n")
    assert only(check(machine, tmp_path)).severity == INFO


def test_lockdown_integrity_is_an_error_where_function_probes_are_needed(machine, tmp_path):
    made_up_machine.put(machine.root, "sys/kernel/security/lockdown", "none [integrity] confidentiality\n")
    (machine.root / "sys/kernel/tracing/events/sock/sk_data_ready/id").unlink()
    errors = [f for f in check(machine, tmp_path) if f.severity == ERROR]
    assert "lockdown" in only(errors).what


def test_lockdown_confidentiality_is_an_error(machine, tmp_path):
    made_up_machine.put(machine.root, "sys/kernel/security/lockdown", "none integrity [confidentiality]\n")
    assert only(check(machine, tmp_path)).severity == ERROR


@pytest.mark.parametrize(
    ("offsets", "refused"), [("0 0", False), ("7 0", True), ("-1 500000000", True), ("0 1", True)]
)
def test_time_namespace_is_refused_before_anything_starts(machine, tmp_path, offsets, refused):
    made_up_machine.put(
        machine.root, "proc/self/timens_offsets", f"monotonic           0         0\nboottime {offsets}\n"
    )
    errors = [f for f in check(machine, tmp_path) if f.severity == ERROR]
    assert bool(errors) == refused
    if refused:
        assert "time namespace" in errors[0].what and "nsenter --target 1 --time" in errors[0].hint


def test_other_clocksource_is_a_warning(machine, tmp_path):
    path = "sys/devices/system/clocksource/clocksource0/current_clocksource"
    made_up_machine.put(machine.root, path, "hpet\n")
    finding = only(check(machine, tmp_path))
    assert finding.severity == WARNING
    assert "hpet" in finding.what


def test_mode_intel_pt_without_intel_pt_is_an_error(machine, tmp_path):
    assert "Intel PT" in only(check(machine, tmp_path, mode="intel-pt")).what


@pytest.mark.parametrize(("has_pt", "mode"), [(True, "intel-pt"), (False, "tracepoints")])
def test_mode_auto_is_intel_pt_where_there_is_intel_pt(machine, has_pt, mode):
    if has_pt:
        (machine.root / "sys/bus/event_source/devices/intel_pt").mkdir(parents=True)
    assert preflight.resolve_mode("auto", machine) == mode


def test_little_disk_space_is_a_warning_and_hardly_any_an_error(machine, tmp_path, monkeypatch):
    class Stat:
        f_flag = 0
        f_frsize = 4096
        f_bavail = 0

    monkeypatch.setattr(preflight.os, "statvfs", lambda _: Stat)
    # mode tracepoints, 4 cores, 10 s: 24 MiB * 4 * 10 = 960 MiB.
    Stat.f_bavail = 960 * 256
    assert check(machine, tmp_path, duration=10) == []
    Stat.f_bavail = 960 * 256 - 1
    assert only(check(machine, tmp_path, duration=10)).severity == WARNING
    Stat.f_bavail = 128 * 256 - 1
    finding = only(check(machine, tmp_path, duration=10))
    assert (finding.severity, finding.exit_code) == (ERROR, EXIT_IO)


def nic(**timestamping):
    return {
        "name": "eth7",
        "netns": 4026531833,
        "driver": "igc",
        "bus": "0000:01:00.0",
        "timestamping": timestamping or None,
    }


def test_nic_that_could_stamp_but_does_not_is_a_warning_with_a_fix(machine, tmp_path):
    # rx_filters is a bit mask of HWTSTAMP_FILTER_*: 0b11 is none and all.
    able = nic(hardware_rx=True, rx_filter=0, rx_filters=0b11)
    finding = only(check(machine, tmp_path, nics=[able]))
    assert finding.severity == WARNING
    assert "eth7: hardware receive timestamps are off" in finding.what
    assert finding.fix == ("hwtstamp", "eth7", "4026531833")


def test_nic_that_stamps_every_packet_is_silent(machine, tmp_path):
    assert check(machine, tmp_path, nics=[nic(hardware_rx=True, rx_filter=1, rx_filters=0b11)]) == []


def test_nic_that_cannot_stamp_is_named(machine, tmp_path):
    finding = only(check(machine, tmp_path, nics=[nic()]))
    assert finding.severity == INFO
    assert "eth7: no hardware receive timestamps" in finding.what


def test_errors_come_first(machine, tmp_path):
    (machine.root / "bin/perf").unlink()
    findings = check(machine, tmp_path, nics=[nic()])
    assert [f.severity for f in findings] == [ERROR, INFO]


@pytest.mark.parametrize(("grade", "mode"), [("pt", "intel-pt"), ("trace", "tracepoints"), ("auto", "auto")])
def test_grade_is_taken_as_mode_with_a_warning(grade, mode, capsys):
    assert cli.parser().parse_args(["--grade", grade]).mode == mode
    assert f"--grade {grade} is called --mode {mode} now" in capsys.readouterr().err
