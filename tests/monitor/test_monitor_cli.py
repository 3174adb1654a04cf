# SPDX-License-Identifier: GPL-2.0-only
"""nsight-monitor as a command: intervals and totals from lines, usage errors, and the end."""

from __future__ import annotations

import fcntl
import json
import os
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import lines
import pytest
from nsight_monitor import names, snapshots

TOOL = Path(__file__).resolve().parents[2] / "tools/nsight-monitor/nsight-monitor"
#: Two intervals of ten seconds: 100 latencies of 1,000 ns, then 50 of 2,000 ns and 50 of 20,000 ns.
FIRST = lines.histogram("tcp-socket-read", 0, 100_000, b10=100)
SECOND = lines.histogram("tcp-socket-read", 0, 1_200_000, b10=100, b11=50, b15=50)
INPUT = lines.header() + lines.snapshot(10, FIRST) + lines.snapshot(20, SECOND, last=True)


def monitor(*options: str, text: str = INPUT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(TOOL), *options], input=text, capture_output=True, text=True, timeout=120,
        env={**os.environ, "TZ": "UTC", "PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.startswith(lines.STAGES)]


def test_each_interval_has_what_is_new() -> None:
    done = monitor("--input", "-")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.findall(r"^(\S+ \S+)  10\.0 s$", done.stdout, re.M) == [
        "2023-11-14 22:13:30",
        "2023-11-14 22:13:40",
    ]
    # 100,000 ns / 100, 1,100,000 / 100; p50 of the second is the 50th latency, p90 and p99 are the 90th and 99th
    assert rows(done.stdout) == [
        ["tcp-socket-read", "100", "1us", *["512ns-1.02us"] * 3, "-", "-", "512ns-1.02us"],
        ["tcp-socket-read", "100", "11us", "1.02-2.05us", *["16.4-32.8us"] * 2, "-", "-", "16.4-32.8us"],
    ]


def test_totals_are_since_the_start() -> None:
    done = monitor("--input", "-", "--total")
    assert [row[1] for row in rows(done.stdout)] == ["100", "200"]
    assert "  20.0 s" in done.stdout


def ending() -> str:
    """Two groups; one of them ends, after 3 more latencies that no line had shown in it."""
    first, second = (lines.histogram("ip-start", group, 100 * group, b1=10 * group) for group in (2, 3))
    last = lines.histogram("ip-start", 3, 340, b1=34)
    ended = [{"stage": "ip-start", "sum_ns": 230, "n": {"1": 20, "4": 3}}]
    both = lines.snapshot(10, first, second, groups={"2": "web", "3": "db"})
    return lines.header("comm") + both + lines.snapshot(20, last, groups={"3": "db"}, ended=ended)


def test_latencies_of_groups_that_ended_stay_in_the_total() -> None:
    assert [row[1:3] for row in rows(monitor("--input", "-", "--total", text=ending()).stdout)] == [
        ["db", "30"], ["web", "20"], ["db", "34"], ["(ended)", "23"],
    ]  # fmt: skip


def test_an_interval_has_only_the_latencies_of_ended_groups_that_are_new() -> None:
    assert [row[1:3] for row in rows(monitor("--input", "-", text=ending()).stdout)] == [
        ["db", "30"], ["web", "20"], ["db", "4"], ["(ended)", "3"],
    ]  # fmt: skip


def test_groups_stand_in_order_of_their_counts_with_their_names_made_plain() -> None:
    text = lines.header("comm") + lines.snapshot(
        10,
        lines.histogram("ip-start", 2, 1, b1=1),
        lines.histogram("ip-start", 3, 1, b1=5),
        lines.histogram("ip-start", 0, 1, b1=2),
        groups={"2": "evil\x1b[2J", "3": "web"},
    )
    assert [row[1:3] for row in rows(monitor("--input", "-", text=text).stdout)] == [
        ["web", "5"], ["(others)", "2"], ["evil?[2J", "1"],
    ]  # fmt: skip


def test_two_groups_never_have_one_name() -> None:
    """Prometheus would reject both."""
    groups = {"2": "a\x01", "3": "a\x02", "4": "(others)", "5": "(ended)"}
    found = names.Names("comm").of(snapshots.snapshot(lines.snapshot(1, groups=groups)))
    assert found == {0: "(others)", 1: "(none)", 2: "a?", 3: "a? #3", 4: "(others) #4", 5: "(ended) #5"}


def test_a_group_that_ended_and_came_again_has_its_name_again() -> None:
    """This also holds if another process finds the names and sends them before the sums."""
    first, gone, again = (
        snapshots.snapshot(lines.snapshot(i, groups=g))
        for i, g in enumerate(({"2": "web"}, {}, {"70": "web"}))
    )
    own, given = names.Names("comm"), names.Names("comm")
    for sums in (first, gone):
        own.of(sums)
    given.give(own.of(first))
    given.of(first)
    given.give(own.of(again))
    assert own.of(again) == given.of(again) == {0: "(others)", 1: "(none)", 70: "web"}


def test_what_has_no_stamp_is_said() -> None:
    counts = {
        "stamp_kernel": 90,
        "stamp_sender_driver": 5,
        "no_stamp_zero": 4,
        "no_stamp_stale": 1,
        "peek": 2,
    }
    by = {"on_sk_data_ready": 5, "on_kfree_skb": 2}
    text = lines.header() + lines.snapshot(10, FIRST, counts=counts, missed=7, missed_by=by)
    out = monitor("--input", "-", text=text).stdout
    assert "5 of 100 packets without a receive stamp (stale 1, zero 4)" in out
    assert "also: peek 2\n" in out and "7 runs of the programs" in out
    assert "left out by the kernel (kfree_skb 2, sk_data_ready 5)\n" in out


def test_top_draws_the_slowest_first_with_its_history() -> None:
    fast = lines.histogram("ip-start", 0, 1000, b9=100)
    text = lines.header() + lines.snapshot(10, FIRST, fast) + lines.snapshot(20, SECOND, fast)
    screens = monitor("--input", "-", "--top", text=text).stdout.split("\n\n")[:-1]
    assert "\x1b" not in "".join(screens)  # a file is not a terminal
    assert [[row[0] for row in rows(s)] for s in screens] == [
        ["tcp-socket-read", "ip-start"],
        ["tcp-socket-read"],
    ]
    assert rows(screens[1])[0][-1] == "▁▆"  # from bucket 10 to 15: 5 of 7 steps


def on_terminal(columns: int, height: int, path: Path) -> list[list[str]]:
    """What --top draws on a terminal: the lines of each screen."""
    ours, its = os.openpty()
    try:
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", height, columns, 0, 0))
        with subprocess.Popen(
            [sys.executable, str(TOOL), "--input", path, "--top"], stdout=its,
            env={k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")} | {"PYTHONIOENCODING": "utf-8"},
        ) as process:  # fmt: skip
            os.close(its)
            drawn = b""
            try:
                while part := os.read(ours, 1 << 16):
                    drawn += part
            except OSError:
                pass  # EIO: the program has ended
        assert process.returncode == 0
    finally:
        os.close(ours)
    return [screen.split("\r\n") for screen in drawn.decode().split("\x1b[H\x1b[2J")[1:]]


@pytest.mark.parametrize(("columns", "height"), [(80, 24), (80, 8), (120, 24), (200, 50), (40, 3)])
def test_top_fits_the_terminal(columns: int, height: int, tmp_path: Path) -> None:
    """Nothing wraps, and nothing scrolls: the cursor is below the last line. Groups, counts and windows are many and long."""
    groups = {str(n): f"{n}" + "x" * 90 for n in range(2, 32)}
    some = [lines.histogram("tcp-socket-read", n, 100_000 * n, b10=100) for n in range(2, 32)]
    counts = {f"some_reason_{n}": n for n in range(1, 20)}
    one = lines.header("comm") + "".join(
        lines.snapshot(second, *some[: 30 - second], groups=groups, counts=counts) for second in range(1, 30)
    )
    path = tmp_path / "lines"
    path.write_text(one + WINDOW + "\n" + lines.snapshot(30, *some, groups=groups))
    screens = on_terminal(columns, height, path)
    assert len(screens) == 30
    for screen in screens:
        assert len(screen) <= height
        assert max(map(len, screen)) <= columns
        assert screen[0].startswith("nsight-monitor")
    if height >= 24:
        assert any("more" in line for line in screens[0]) == (height < 40)
        assert all(word in screens[0][1] for word in ("stage", "group", "count", "mean"))
        assert "512ns-1.02us" in screens[0][2]


WINDOW = json.dumps(
    {
        "window": {
            "name": "20261124T135943Z-1-2.nsight",
            "slow": [
                {"stage": stage, "group": 0, "ns": ns, "monotonic_ns": 1, "realtime_ns": 1}
                for stage, ns in (
                    ("run-queue", 11_000_000),
                    ("handoff-to-read", 12_000_000),
                    ("a\x1b", 5),
                    ("b", 6),
                )
            ],
        }
    }
)


def test_a_window_is_a_line_with_the_slowest_and_the_command_that_explains_it() -> None:
    said = "window: handoff-to-read 12ms, run-queue 11ms, b 6ns and 1 more: nsight-report 20261124T135943Z-1-2.nsight"
    assert said in monitor("--input", "-", text=f"{INPUT}{WINDOW}\n").stdout.splitlines()
    screens = monitor("--input", "-", "--top", text=f"{lines.header()}{WINDOW}\n{lines.snapshot(1)}").stdout
    assert screens.splitlines()[-2:] == [said, ""]


def test_given_names_are_shown() -> None:
    text = lines.header("cgroup") + json.dumps({"names": {"2": "shop/front-1/nginx"}}) + "\n"
    text += lines.snapshot(10, lines.histogram("ip-start", 2, 1, b1=1), groups={"2": 5})
    assert rows(monitor("--input", "-", text=text).stdout)[0][1] == "shop/front-1/nginx"


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (["--top", "--json"], 2, "--top and --json"),
        (["--input", "-", "--port", "80"], 2, "--input: not with --port"),
        (["--input", "-", "--once"], 2, "--input: not with --once"),
        (["--input", "-", "--duration", "5"], 2, "--input: not with --duration"),
        (["--input", "no-such-file"], 2, "no-such-file: No such file"),
        (["--prometheus", "localhost"], 2, "no port"),
        (["--iface", "no-such-0"], 2, "no such interface"),
        (["--netns", "no-such"], 2, "no such network namespace"),
        (["--cgroup", "/no/such"], 2, "no such cgroup"),
        (["--peer", "example.org"], 2, "--peer"),
        (["--peer", "::/0"], 2, "--peer"),
        (["--interval", "0"], 2, "--interval"),
        (["--group-by", "user"], 2, "--group-by"),
        (["--trigger", "ip-start=1ms"], 2, "--flight"),
        (["--flight", "no-such"], 2, "no flight recorder writes there"),
        (["--flight", "no-such", "--trigger", "ip-start=1"], 2, "not a trigger"),
        (["--input", "-", "--flight", "no-such"], 2, "--input: not with --flight"),
        (["--web-config", "no-such"], 2, "not without --prometheus"),
        (["--native-histograms"], 2, "not without --prometheus"),
        (["--input", "-", "--prometheus", "0", "--web-config", "no-such"], 2, "No such file"),
        (["--listen", "x", "--json"], 2, "--json and --listen"),
        (["--min-queue", "0"], 2, "--min-queue"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else None,
)  # fmt: skip
def test_wrong_usage_names_what_is_wrong(options: list[str], code: int, said: str) -> None:
    done = monitor(*options)
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "text", ["", "no lines\n", lines.header() + "{}\n"], ids=["empty", "other", "second"]
)
def test_other_input_is_refused_with_a_hint(text: str) -> None:
    done = monitor("--input", "-", text=text)
    assert done.returncode == 5
    assert done.stderr.startswith("error: ") and "\nhint: " in done.stderr
