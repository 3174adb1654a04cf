# SPDX-License-Identifier: GPL-2.0-only
"""What the manifest says about the machine, from made-up kernel files."""

from __future__ import annotations

import os
from pathlib import Path

from nsight_record import host


def write(root: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)


def test_settings_that_jitter_depends_on_are_told(tmp_path: Path) -> None:
    cpu = "sys/devices/system/cpu"
    write(tmp_path, {
        f"{cpu}/intel_pstate/no_turbo": b"1\n", f"{cpu}/isolated": b"2-3\n", f"{cpu}/nohz_full": b"2\n", f"{cpu}/smt/control": b"off\n",
        "dev/cpu_dma_latency": (20).to_bytes(4, "little"), "sys/devices/system/node/node0/cpulist": b"0-1\n",
        "sys/devices/system/node/node1/cpulist": b"2-3\n", "proc/sys/kernel/numa_balancing": b"0\n",
        "sys/fs/resctrl/schemata": b"L3:0=ff\n", "sys/fs/resctrl/web/schemata": b"L3:0=0f\n",
    })  # fmt: skip
    told = host.describe(tmp_path)
    expected = {
        "turbo": False, "isolated": "2-3", "nohz_full": "2", "smt": "off", "idle_limit_us": 20, "numa_nodes": {"node0": "0-1", "node1": "2-3"},
        "numa_balancing": "0", "resctrl": {"": "L3:0=ff", "web": "L3:0=0f"}, "pmu": False, "affinity": sorted(os.sched_getaffinity(0)),
    }  # fmt: skip
    assert {name: told[name] for name in expected} == expected


def test_what_a_machine_does_not_have_is_null(tmp_path: Path) -> None:
    told = host.describe(tmp_path)
    assert [told[name] for name in ("turbo", "isolated", "idle_limit_us", "resctrl")] == [None] * 4
    assert told["numa_nodes"] == {}


def test_only_so_many_groups_of_resctrl_are_told(tmp_path: Path) -> None:
    write(
        tmp_path,
        {f"sys/fs/resctrl/{name}/schemata": b"L3:0=1\n" for name in [".", *(f"g{n}" for n in range(100))]},
    )
    told = host.describe(tmp_path)
    assert len(told["resctrl"]) == host.MOST_GROUPS
