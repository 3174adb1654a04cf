# SPDX-License-Identifier: GPL-2.0-only
"""Message events from records: the same table as from events.tsv, and the report of missing ones."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from machinery.made_up import record_files as rf
from nsight_report.capture import message_events, raw_records
from nsight_report.errors import BadInput
from nsight_report.pipeline import Pipeline

NAMES = {0: (b"swapper/0", 0), 7: (b"memcached", 6)}
TASKS = rf.task(1, 7, 6, NAMES[7][0])
SERVER, CLIENT = 0x0100000A, 0x0200000A  # 10.0.0.1, 10.0.0.2 as loaded
# 2001:db8::1 and 2001:db8::2, 8 bytes as loaded
SIX = (0xB80D0120, 0x0100000000000000, 0xB80D0120, 0x0200000000000000)
MAPPED = (0, 0x0100000AFFFF0000, 0, 0x0200000AFFFF0000)
CLOCK = "#nsight-clock 1 tsc_khz=1000000 clocksource=tsc"

Stamp = tuple[str, int, dict[str, Any]]


def line(stamp: Stamp) -> str:
    """The line that the bpftrace probes print for the same event."""
    kind, ts, fields = stamp
    f = rf.MESSAGE_FIELDS | fields
    name, pid = NAMES[f["tid"]]
    comm = struct.unpack("<QQ", name.ljust(16, b"\0"))
    words = f.get("v6") or (0, f["laddr"], 0, f["raddr"])
    packet, call = kind in "AX", kind in "RS"
    row = [
        kind, ts, f.get("cpu", 0), pid, f["tid"], *(f"{word:x}" for word in comm), f["fd"] if call else -1,
        f["stamp"] if call else 0, f"{f['sk']:x}", f["netns"], f["proto"], 10 if f.get("v6") else 2,
        f"{words[0]:x}", f"{words[1]:x}", f["lport"], f"{words[2]:x}", f"{words[3]:x}", f["rport"], f["seq"],
        f["old_state"] if kind == "O" else f["len"], f.get("hw") or 0, 0 if call else f["stamp"],
        f["fd"] << 8 | f["aux"] if packet else f["aux"],
    ]  # fmt: skip
    return "\t".join(map(str, row))


def record(stamp: Stamp) -> bytes:
    kind, ts, fields = stamp
    return rf.message(kind, ts, **{name: value for name, value in fields.items() if name != "cpu"})


def write_text(directory: Path, stamps: list[Stamp]) -> Path:
    counts = [f"@n[{kind}]: {sum(s[0] == kind for s in stamps)}" for kind in rf.KINDS]
    text = ["#nsight-events 1 clock=monotonic", *map(line, stamps), *counts, "#end", ""]
    (directory / "events.tsv").write_text("\n".join(text))
    return directory / "events.tsv"


def write_records(directory: Path, stamps: list[Stamp], activity: dict[int, bytes] | None = None) -> Path:
    cores = dict.fromkeys({s[2].get("cpu", 0) for s in stamps} | set(activity or {}), b"")
    for stamp in stamps:
        cores[stamp[2].get("cpu", 0)] += record(stamp)
    files = {f"cpu{cpu}": rf.whole(cpu, (activity or {}).get(cpu, b"") + made) for cpu, made in cores.items()}
    return rf.write(directory, rf.whole(rf.NO_CPU, TASKS), **files)


def rows(directory: Path, records: Path) -> tuple[list[dict[str, Any]], dict[str, int]]:
    events, losses = raw_records.messages(records, directory)
    return pq.read_table(events.path).to_pylist(), {r["cause"]: r["count"] for r in losses.to_pylist()}


EVERY_KIND: list[Stamp] = [
    ("A", 1000, {"fd": 2, "aux": 0x18, "seq": 7, "len": 50, "stamp": 900, "hw": 123456789}),
    ("H", 1100, {"sk": 0xFFFF888000000040, "seq": 57}),
    ("R", 1200, {"sk": 0xFFFF888000000040, "seq": 7, "len": 50, "tid": 7, "fd": 9, "stamp": 1150, "aux": 0x40}),
    ("S", 1300, {"sk": 0xFFFF888000000040, "seq": 0xFFFFFFFF, "len": 20, "tid": 7, "fd": 9, "stamp": 1250}),
    ("X", 1400, {"sk": 0xFFFF888000000040, "fd": 3, "aux": 0x11, "seq": 9, "len": 20, "tid": 7, "cpu": 1}),
    ("T", 1500, {"seq": 9, "len": 20, "aux": 2, "stamp": 1450, "hw": 5}),
    ("O", 1600, {"sk": 0xFFFF888000000040, "old_state": 1, "aux": 8, "tid": 7}),
    ("A", 1700, {"fd": 2, "aux": 0x18, "v6": SIX, "len": 1}),
    ("A", 1800, {"fd": 2, "aux": 0x18, "v6": SIX, "len": 1, "hw": 77}),
    ("R", 1900, {"v6": MAPPED, "len": -11, "proto": 17, "tid": 7, "sk": 1}),
]  # fmt: skip


def test_every_kind_gives_the_row_that_its_line_gives(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "records-made").mkdir()
    written, lost = message_events.load(write_text(tmp_path, EVERY_KIND), tmp_path / "text")
    of_text = pq.read_table(written.path).to_pylist()
    found, losses = rows(tmp_path / "records-made", write_records(tmp_path, EVERY_KIND))
    assert found == of_text
    assert len(found) == len(EVERY_KIND)
    assert (losses, lost.num_rows) == ({}, 0)


def test_stamps_hold_what_the_record_holds(tmp_path: Path) -> None:
    records = write_records(tmp_path, EVERY_KIND)
    _, stamps, info = rf.decode(records, tmp_path / "out", only="messages")
    first = stamps[0]
    assert {name: first[name].item() for name in stamps.dtype.names if name != "pad"} == {
        "ts": 1000, "call_ts": 0, "sk": 0, "laddr_hi": 0, "laddr_lo": SERVER, "raddr_hi": 0, "raddr_lo": CLIENT,
        "hwstamp": 123456789, "swstamp": 900, "aux": 2 << 8 | 0x18, "len": 50, "seq": 7, "netns": 4026531840,
        "pid": 0, "tid": 0, "fd": -1, "comm": info["strings"].index("swapper/0"), "cpu": 0, "lport": 11211,
        "rport": 40000, "kind": 0, "family": 2, "proto": 6,
    }  # fmt: skip
    # one core after the other, each in the order of its file
    assert stamps["ts"].tolist() == [1000, 1100, 1200, 1300, 1500, 1600, 1700, 1800, 1900, 1400]
    six = stamps[stamps["ts"] == 1800][0]
    assert tuple(six[["laddr_hi", "laddr_lo", "raddr_hi", "raddr_lo"]]) == SIX
    assert (six["family"], six["hwstamp"]) == (10, 77)
    read = stamps[stamps["ts"] == 1200][0]
    assert (read["fd"], read["call_ts"], read["swstamp"], read["pid"]) == (9, 1150, 0, 6)
    assert info["strings"][read["comm"]] == "memcached"
    assert stamps[stamps["kind"] == 6]["len"].tolist() == [1]  # the old state


SHORT: list[Stamp] = [
    ("A", 1000, {"fd": 2, "aux": 0x118, "seq": 7, "len": 50, "stamp": 900}),
    ("A", 1010, {"fd": 32767, "aux": 0x10, "seq": 0xFFFFFFFF, "len": 65536}),
    ("H", 1100, {"sk": 0xFFFF888000000040, "seq": 57, "aux": 1}),
    ("R", 1200, {"sk": 0xFFFF7FFF00000040, "seq": 7, "len": 1 << 30, "tid": 7, "fd": 9, "aux": 0x40000040}),
    ("R", 1210, {"v6": MAPPED, "len": -11, "proto": 17, "tid": 7, "fd": -1}),
    ("S", 1300, {"sk": 0x40, "seq": 0xFFFFFFFF, "len": 20, "tid": (1 << 22) - 1, "fd": 0}),
    ("X", 1400, {"sk": 0xFFFF888000000040, "fd": 3, "aux": 0x1FF, "seq": 9, "len": 20, "tid": 7, "stamp": 1500}),
    ("X", 1410, {"v6": SIX, "fd": 3, "proto": 17, "aux": 0, "len": 20, "netns": 0xFFFFFFFF, "stamp": 1}),
]  # fmt: skip


def test_short_records_say_what_long_ones_do(tmp_path: Path) -> None:
    made = {}
    for form in (rf.message, rf.short):
        content = b"".join(form(kind, ts, **fields) for kind, ts, fields in SHORT)
        records = rf.write(tmp_path / form.__name__, rf.whole(rf.NO_CPU, TASKS), cpu0=rf.whole(0, content))
        made[form.__name__] = rf.decode(records, tmp_path / f"{form.__name__}.out", only="messages")
    (_, long, told), (_, stamps, said) = made["message"], made["short"]
    assert stamps.tobytes() == long.tobytes() and len(stamps) == len(SHORT)
    assert said["lost"] == told["lost"] == [] and said["losses"] == told["losses"]
    assert [record[0] >> 5 for record in rf.split(content)] == [5] * len(SHORT)  # not the long form twice


def test_sockets_are_known_by_48_bits_of_their_address(tmp_path: Path) -> None:
    """With page tables of five levels a kernel's addresses have more; both forms of a record name a socket alike."""
    sk = 0xFF11000012345640
    content = rf.message("H", 1000, sk=sk) + rf.short("R", 1100, sk=sk, tid=7)
    records = rf.write(tmp_path, cpu0=rf.whole(0, content + rf.retransmit(1200, 1, 2, 3, sk)))
    found, stamps, _ = rf.decode(records, tmp_path / "out")
    assert set(stamps["sk"].tolist()) == {0x12345640}
    assert [event[-1] for event in found if event[1] == "tcp_retransmit"] == [0x12345640]


def test_cores_come_in_order_of_their_numbers(tmp_path: Path) -> None:
    files = {f"cpu{cpu}": rf.whole(cpu, rf.message("H", 1000)) for cpu in (11, 3, 10, 2, 300, 0, 1, 20)}
    _, stamps, _ = rf.decode(rf.write(tmp_path, **files), tmp_path / "out", only="messages")
    assert stamps["cpu"].tolist() == [0, 1, 2, 3, 10, 11, 20, 300]


def test_rows_are_the_same_however_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = write_records(tmp_path, EVERY_KIND)
    whole = rows(tmp_path, records)
    monkeypatch.setattr(raw_records, "_PIECE", 3)
    assert rows(tmp_path, records) == whole


def test_impossible_values_are_rejected_as_those_of_text(tmp_path: Path) -> None:
    stamps: list[Stamp] = [
        ("R", 1200, {"tid": 7, "stamp": 1201}),  # the call began after its end
        ("R", 1300, {"tid": 7, "proto": 1}),
        ("H", 1400, {"tid": 7}),
    ]
    found, losses = rows(tmp_path, write_records(tmp_path, stamps))
    assert [row["ts_ns"] for row in found] == [1400]
    assert losses == {
        "events with impossible time": 1,
        "events with unknown protocol or address family": 1,
    }


def test_stamp_far_out_of_order_is_rejected(tmp_path: Path) -> None:
    stamps: list[Stamp] = [("H", ts, {}) for ts in range(1000, 1020)]
    stamps.insert(10, ("H", 60_000_000_000, {}))
    found, losses = rows(tmp_path, write_records(tmp_path, stamps))
    assert len(found) == 20
    assert losses == {"events far out of order": 1}


def test_thread_of_which_nothing_is_told_stands_for_its_process(tmp_path: Path) -> None:
    records = rf.write(tmp_path, cpu0=rf.whole(0, rf.message("R", 1000, tid=99, len=1)))
    found, losses = rows(tmp_path, records)
    assert [(row["tid"], row["pid"], row["comm"]) for row in found] == [(99, 99, "")]
    assert losses == {"message events of a thread whose process is unknown": 1}


def test_name_and_process_are_those_of_the_time(tmp_path: Path) -> None:
    content = b"".join([
        rf.message("R", 900, tid=7),
        rf.task(1000, 7, 6, b"one", rf.RENAMED),
        rf.message("R", 1000, tid=7),
        rf.exit_(1100, 7, 6),
        rf.message("R", 1150, tid=7),
        rf.task(1200, 7, 7, b"two\n\xff", rf.NEW),
        rf.message("R", 1200, tid=7),
        rf.message("R", 1300, tid=7),
    ])  # fmt: skip
    found, _ = rows(tmp_path, rf.write(tmp_path, cpu0=rf.whole(0, content)))
    names = [(row["comm"], row["pid"]) for row in found]
    assert names == [("one", 6)] * 3 + [("two\\n\ufffd", 7)] * 2


def test_counts_of_the_probes_and_what_they_lost_are_told(tmp_path: Path) -> None:
    one, six = rf.message("A", 1000, fd=1), rf.message("A", 1100, fd=1, v6=SIX)
    read = rf.message_type("R")
    # of 5 arrivals over IPv4, two were lost; none of 4 reads is present: 1 lost, 3 vanished
    tallies = {one[0]: (3, 2), six[0]: (1, 0), read: (4, 1)}
    content = rf.header(0) + rf.block(one + six, 1000) + rf.counts(1000, tallies, (10, 20, 30, 40, 50))
    found, losses = rows(tmp_path, rf.write(tmp_path, cpu0=content))
    assert len(found) == 2
    assert losses == {
        "A events lost": 2,
        "R events lost": 4,
        "probe count: ack": 10,
        "probe count: peek": 20,
        "probe count: unparsed": 40,
    }


def test_file_without_an_end_is_told(tmp_path: Path) -> None:
    _, losses = rows(tmp_path, rf.write(tmp_path, cpu0=rf.header(0) + rf.block(rf.message("H", 1000), 1000)))
    assert losses == {"message events were cut": 1}


# -- whole captures ---------------------------------------------------------------------------

S = 1_000_000_000


def traffic(n: int) -> tuple[list[Stamp], dict[int, bytes]]:
    """``n`` messages to a thread on core 1; core 0 receives them. Every tenth waits behind another program."""
    stamps: list[Stamp] = []
    core = {0: b"", 1: rf.switch(50 * S - 1000, 8, 0)}
    sk = 0xFFFF888000000040
    for i in range(n):
        t = 50 * S + i * 100_000
        late = 30_000 if i % 10 == 9 else 0
        seq = {"seq": 1 + 50 * i, "len": 50}
        read = t + 9_000 + late
        stamps.append(("A", t, {**seq, "fd": 2, "aux": 0x18}))
        stamps.append(("H", t + 2_000, {"sk": sk, "seq": 51 + 50 * i}))
        stamps.append(("R", read, {**seq, "sk": sk, "tid": 7, "fd": 9, "stamp": read - 1500, "cpu": 1}))
        core[0] += rf.waking(t + 2_100, 7, 0, 1) + rf.pair("SOFTIRQ", t - 500, t + 3_000, 3)
        if late:
            core[1] += rf.switch(t - 5_000, 0, 8)
        core[1] += rf.switch(t + 6_000 + late, 8 if late else 0, 7, state=0x100 if late else 0)
        core[1] += rf.syscall(read - 1500, read + 200, 7, 0, 9, 50)
        core[1] += rf.switch(read + 1000, 7, 0)
    core[0] += rf.switch(50 * S + n * 100_000, 0, 3)
    return stamps, core


def capture(directory: Path, name: str) -> Path:
    path = directory / f"{name}.nsight"
    path.mkdir()
    manifest = {
        "format": "nsight-capture", "version": 1, "state": "complete", "mode": "tracepoints", "losses": [],
        "host": {"hostname": "db7"}, "command": ["nsight-record"], "syscall_names": {"0": "read"},
        "start": {"monotonic_ns": 49 * S}, "stop": {"monotonic_ns": 60 * S},
    }  # fmt: skip
    (path / "manifest.json").write_text(json.dumps(manifest))
    clocks = [
        f"B\t{domain}\t{t}\t{t + 20}\t{t + 40}"
        for domain in ("monotonic", "boottime", "realtime", "tai")
        for t in range(48 * S, 62 * S, S)
    ]
    (path / "clock.tsv").write_text("\n".join([CLOCK, *clocks, "E\t10\t2\t0\t1000\t1000000", ""]))
    return path


def test_messages_of_a_capture_are_those_of_the_same_capture_as_text(tmp_path: Path) -> None:
    stamps, core = traffic(100)
    text, binary = capture(tmp_path, "text"), capture(tmp_path, "binary")
    write_text(text, stamps)
    write_records(binary, stamps, core)
    tables = []
    for path in (text, binary):
        pipeline = Pipeline(path)
        for stage in ("clocks", "events", "messages"):
            pipeline.run_alone(stage)
        tables.append([pq.read_table(pipeline.path(name)).to_pylist() for name in ("events", "messages")])
    assert len(tables[0][1]) == 100
    assert tables[0] == tables[1]


def test_capture_with_records_is_diagnosed(tmp_path: Path) -> None:
    stamps, core = traffic(200)
    path = capture(tmp_path, "binary")
    write_records(path, stamps, {0: core[0], 1: rf.task(50 * S, 8, 8, b"hog", rf.RENAMED) + core[1]})
    pipeline = Pipeline(path)
    assert "contexts" in pipeline.run()
    calls = pipeline.table("calls").to_pylist()
    assert {"NET_RX", "read", "memcached", "hog"} <= {call["symbol"] for call in calls}
    causes = pipeline.table("causes").to_pylist()
    assert "hog" in {cause["subject"] for cause in causes}
    assert pipeline.run() == []


def test_file_of_records_that_changes_makes_the_stages_stale(tmp_path: Path) -> None:
    stamps, core = traffic(100)
    path = capture(tmp_path, "binary")
    records = write_records(path, stamps, core)
    Pipeline(path).run()
    (records / "irqs.tsv").write_text("1\tx\n")
    assert {"events", "contexts"} <= set(Pipeline(path).run())


def test_capture_without_messages_names_the_records(tmp_path: Path) -> None:
    path = capture(tmp_path, "binary")
    write_records(path, [], traffic(5)[1])
    with pytest.raises(BadInput, match="records: no message was recorded"):
        Pipeline(path).run()


def test_capture_without_switches_names_the_records(tmp_path: Path) -> None:
    path = capture(tmp_path, "binary")
    write_records(path, traffic(5)[0])
    with pytest.raises(BadInput, match="records/ does not show which threads ran on any core"):
        Pipeline(path).run()


def test_records_of_another_boot_are_refused_by_name(tmp_path: Path) -> None:
    stamps, core = traffic(5)
    path = capture(tmp_path, "binary")
    write_records(path, stamps, core)
    made = json.loads((path / "manifest.json").read_text())
    made["start"]["monotonic_ns"], made["stop"]["monotonic_ns"] = 9000 * S, 9010 * S
    (path / "manifest.json").write_text(json.dumps(made))
    with pytest.raises(BadInput, match=r"messages of records/: outside the recording in manifest\.json"):
        Pipeline(path).run()


def test_wake_up_without_sched_wakeup_gives_the_run_queue_latency(tmp_path: Path) -> None:
    from nsight_report import calls

    content = b"".join([
        rf.switch(1000, 0, 7, 0),
        rf.switch(2000, 7, 8),
        rf.waking(3000, 7, 8, 0),
        rf.switch(3400, 8, 7, state=2),
        rf.switch(4000, 7, 0),
    ])  # fmt: skip
    decoded, _ = raw_records.activity(
        rf.write(tmp_path, rf.whole(rf.NO_CPU, TASKS), cpu0=rf.whole(0, content))
    )
    states = [row for row in calls.build(decoded)[2].to_pylist() if row["tid"] == 7]
    assert [(row["state"], row["start_ns"], row["end_ns"], row["waker_tid"]) for row in states] == [
        ("running", 1000, 2000, -1),
        ("sleeping", 2000, 3000, -1),
        ("runnable", 3000, 3400, 8),
        ("running", 3400, 4000, -1),
    ]
