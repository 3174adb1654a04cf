# SPDX-License-Identifier: GPL-2.0-only
"""The manifest lists control groups whose CPU quota ran out, with their processes."""

from __future__ import annotations

from pathlib import Path

from made_up_machine import put
from nsight_record import throttling


def put_v1(root: Path, group: str, quota: int, throttled: tuple[int, int], pids: str = "") -> Path:
    """A group of version 1, as its files show it."""
    at = f"sys/fs/cgroup/cpu,cpuacct/{group}"
    put(root, f"{at}/cpu.cfs_quota_us", f"{quota}\n")
    put(root, f"{at}/cpu.cfs_period_us", "100000\n")
    times, ns = throttled
    put(root, f"{at}/cpu.stat", f"nr_periods 900\nnr_throttled {times}\nthrottled_time {ns}\nnr_bursts 0\n")
    put(root, f"{at}/cgroup.procs", pids)
    return root / at


def put_v2(root: Path, group: str, most: str, throttled: tuple[int, int], pids: str = "") -> Path:
    """A group of version 2."""
    at = f"sys/fs/cgroup/{group}"
    put(root, f"{at}/cpu.max", f"{most}\n")
    times, us = throttled
    put(root, f"{at}/cpu.stat", f"usage_usec 5\nnr_periods 9\nnr_throttled {times}\nthrottled_usec {us}\n")
    put(root, f"{at}/cgroup.procs", pids)
    return root / at


V1 = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n"
V2 = "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate 0 0\n"


def test_of_version_1_groups_that_were_throttled_meanwhile_are_told(tmp_path: Path) -> None:
    put(tmp_path, "proc/self/mounts", V1 + "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n")
    put_v1(tmp_path, "system", -1, (0, 0), "1\n")
    put_v1(tmp_path, "system/quiet", 50_000, (7, 700), "20\n")
    put_v1(tmp_path, "memory-alike", 0, (1, 1))
    busy = put_v1(tmp_path, "system/busy", 20_000, (3, 1_000), "30\n31\n")
    put_v1(tmp_path, "system/busy/inner", -1, (0, 0), "32\n")
    before = throttling.groups(tmp_path)
    assert before[busy] == throttling.Group(20_000, 100_000, 3, 1_000)
    put_v1(tmp_path, "system/busy", 20_000, (8, 9_000), "30\n31\n")
    assert throttling.between(before, throttling.groups(tmp_path)) == [
        {"cgroup": str(busy), "quota_us": 20_000, "period_us": 100_000, "times": 5, "ns": 8_000, "pids": [30, 31, 32]}
    ]  # fmt: skip


def test_of_version_2_as_well_and_groups_that_were_made_meanwhile_count_whole(tmp_path: Path) -> None:
    put(tmp_path, "proc/self/mounts", V2)
    put_v2(tmp_path, "free", "max 100000", (9, 9))
    a = put_v2(tmp_path, "a", "20000 100000", (1, 10), "40\n")
    watch = throttling.Watch(tmp_path)
    assert watch.told() == []
    put_v2(tmp_path, "a", "20000 100000", (2, 15), "40\n")
    b = put_v2(tmp_path, "b", "5000 50000", (4, 90), "41\n")
    assert watch.told() == [
        {"cgroup": str(b), "quota_us": 5000, "period_us": 50_000, "times": 4, "ns": 90_000, "pids": [41]},
        {"cgroup": str(a), "quota_us": 20_000, "period_us": 100_000, "times": 1, "ns": 5_000, "pids": [40]},
    ]


def test_a_watch_forgets_what_is_older_than_the_reading_before_the_newest(tmp_path: Path) -> None:
    put(tmp_path, "proc/self/mounts", V2)
    put_v2(tmp_path, "a", "20000 100000", (1, 10))
    watch = throttling.Watch(tmp_path, every_s=0)
    put_v2(tmp_path, "a", "20000 100000", (5, 50))
    watch.tick()
    assert [row["times"] for row in watch.told()] == [4]
    put_v2(tmp_path, "a", "20000 100000", (6, 60))
    watch.tick()
    assert [row["times"] for row in watch.told()] == [1]


def test_files_that_say_nothing_are_no_groups(tmp_path: Path) -> None:
    assert throttling.groups(tmp_path) == {}
    put(tmp_path, "proc/self/mounts", V1 + V2 + "odd\n")
    put(tmp_path, "sys/fs/cgroup/odd/cpu.max", "what\n")
    put(tmp_path, "sys/fs/cgroup/odd/cpu.stat", "nr_throttled\n")
    put(tmp_path, "sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us", "many\n")
    assert throttling.groups(tmp_path) == {}
