# SPDX-License-Identifier: GPL-2.0-only
"""What the recorder reads from bpftrace's output: which lines arrived, which were produced."""

from nsight_record import probes

LINES = b"#nsight-events 1 clock=boottime\nA\t1\t0\nA\t2\t0\nR\t3\t0\n@n[A]: 1\nA\t4\t0\nS\t5\t0\n"


def count(tmp_path, text, log=b""):
    (tmp_path / "events.tsv").write_bytes(text)
    (tmp_path / "events.log").write_bytes(log)
    return probes.count(tmp_path / "events.tsv", tmp_path / "events.log")


def test_lines_are_counted_by_kind(tmp_path):
    c = count(tmp_path, LINES)
    assert c.written == {"A": 3, "R": 1, "S": 1}


def test_last_of_the_probes_own_counts_is_taken(tmp_path):
    c = count(tmp_path, LINES + b"@n[A]: 7\n@n[R]: 1\n@n[ack]: 12\n#end\n")
    assert c.produced == {"A": 7, "R": 1, "ack": 12}
    assert c.ended


def test_produced_but_unwritten_events_are_the_loss(tmp_path):
    # A: 7 - 3 written = 4; R: 1 - 1 = 0; ack is not printed and cannot be lost.
    assert count(tmp_path, LINES + b"@n[A]: 7\n@n[R]: 1\n@n[ack]: 12\n#end\n").undelivered() == 4


def test_output_without_its_last_line_has_not_ended(tmp_path):
    assert not count(tmp_path, LINES).ended


def test_losses_that_bpftrace_reports_are_summed(tmp_path):
    c = count(tmp_path, LINES + b"Lost 30 events\nA\t6\t0\nLost 4 events\n", b"Lost 100 events\n")
    assert c.lost == 134


def test_counts_do_not_depend_on_where_blocks_end(tmp_path):
    # 29-byte lines: blocks of 1 MiB end inside lines, at every offset in turn.
    line = b"R\t" + b"7" * 26 + b"\n"
    n = 150_000
    c = count(tmp_path, b"#nsight-events 1 clock=boottime\n" + line * n + b"@n[R]: 150000\n#end\n")
    assert c.written == {"R": n}
    assert c.undelivered() == 0


def test_file_without_line_breaks_is_read_in_bounded_memory(tmp_path):
    c = count(tmp_path, b"R\t" * (8 << 20))
    assert c.written == {"R": 1}  # one line, whatever its length


def test_missing_output_counts_as_nothing(tmp_path):
    c = probes.count(tmp_path / "none", tmp_path / "none.log")
    assert (c.produced, c.written, c.lost, c.ended) == ({}, {}, 0, False)


def test_script_is_chosen_by_tracepoints(tmp_path):
    for name in probes.NEEDED_TRACEPOINTS:
        (tmp_path / "events" / name).mkdir(parents=True)
        (tmp_path / "events" / name / "id").touch()
    assert probes.choose_script(tmp_path) == "nsight-record.bt"
    (tmp_path / "events/sock/sock_recv_length/id").unlink()
    assert probes.choose_script(tmp_path) == "nsight-record-legacy.bt"


def test_filters_are_the_positional_parameters_in_the_scripts_order():
    f = probes.Filters(port=1, pid=2, cgroup_id=3, ifindex=4, netns_inum=5, direction=2)
    assert f.positional() == ["1", "2", "3", "4", "5", "2", "0"]


def test_ring_buffer_takes_at_most_a_thirtysecond_of_the_memory():
    # 4096 pages * 4 KiB * 2 cores = 32 MiB = 1/32 of 1 GiB.
    assert probes.environment(2, 1 << 30)["BPFTRACE_PERF_RB_PAGES"] == "4096"
    assert probes.environment(2, (1 << 30) - 1)["BPFTRACE_PERF_RB_PAGES"] == "2048"
