# SPDX-License-Identifier: GPL-2.0-only
"""The BPF programs compute the bucket as it is defined."""

from __future__ import annotations

import subprocess
from pathlib import Path

from monitored import bucket

from conftest import ROOT

SOURCE = r"""
#include <stdio.h>
#include <stdlib.h>
#include "buckets.h"

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		printf("%u\n", bucket_of(strtoull(argv[i], NULL, 10)));
}
"""


def test_buckets_are_those_of_the_definition(tmp_path: Path) -> None:
    ns = sorted({(1 << bit) + more for bit in range(64) for more in (-1, 0, 1)} - {-1})
    (tmp_path / "buckets.c").write_text(SOURCE)
    include = ROOT / "tools/nsight-monitor/histograms"
    subprocess.run(["gcc", "-I", include, "-o", tmp_path / "buckets", tmp_path / "buckets.c"], check=True)
    printed = subprocess.run(
        [tmp_path / "buckets", *map(str, ns)], check=True, capture_output=True, text=True
    )
    assert [int(line) for line in printed.stdout.split()] == [bucket(n) for n in ns]
