# SPDX-License-Identifier: GPL-2.0-only
"""What is reported about a recording before it is diagnosed."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from evaluation.truth.measure import Recording
from evaluation.truth.scenarios import SCENARIOS

HEAD = (
    "#nsight-load 1 clock=monotonic proto=http server=198.18.77.1 port=80\n"
    "number\tconn\tlport\tintended_ns\tsend_ns\trecv_ns\tbyte_start\tnbytes\tresponse_bytes\tkind\tcounted\n"
)


def recording(directory: Path, received: list[int]) -> Recording:
    rows = "".join(f"{n}\t0\t40000\t{n}\t{n}\t{at}\t0\t58\t0\tGET\t1\n" for n, at in enumerate(received))
    (directory / "load.tsv").write_text(f"{HEAD}{rows}#end\n")
    return Recording(SCENARIOS[0], directory, 80, np.zeros((0, 2), np.int64), [], 5.3, 0)


def test_a_server_that_answered_nothing_is_told_by_the_clients_log(tmp_path: Path) -> None:
    said = "the server answered none of the client's 3 requests in 5.3 s"
    assert recording(tmp_path, [0, 0, 0]).unanswered() == said
    assert recording(tmp_path, [0, 12, 0]).unanswered() == ""
