# SPDX-License-Identifier: GPL-2.0-only
"""Compares the client's latency with the report's, request by request: the difference is the way there and back.

For servers and clients on one machine, whose timestamps are from one clock. With a server's name the load client sends requests
to it in network namespaces while the recorder records (needs root); without, CAPTURE and LOG must already exist.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

if __name__ == "__main__":
    _ROOT = Path(__file__).resolve().parents[3]
    sys.path[:0] = [str(_ROOT / part) for part in ("tools/nsight-report", "tools/nsight-demo", "tests")]

import nsight_report
import numpy as np
import pandas as pd
from machinery.testbed.bed import BedError, Testbed
from nsight_demo.logs import read_load
from nsight_report.units import duration, percentile

RECORD = Path(__file__).resolve().parents[3] / "tools/nsight-record/nsight-record"
#: Time within which a recording of a few requests ends, unless it hangs.
END_S = 300


def record(server: str, options: list[str], directory: Path, payload: bool = False) -> tuple[Path, Path, int]:
    """Record ``server`` under the load client's ``options``; returns ``(capture, the client's log, port)``.

    ``payload``: with the packets, for framing.
    """
    capture, log = directory / "client.nsight", directory / "load.tsv"
    with Testbed() as bed:
        started = bed.start_server(server)
        argv = [str(RECORD), "-o", str(capture), "-f", "-q", "--port", str(started.port)]
        argv += ["--payload", "--netns", bed.link.server] if payload else []
        load = bed.load_argv(started, [*options, "--start-delay", "300"], log)
        recorder = bed.start("nsight-record", [*argv, "--", *load], grace_s=20)
        if recorder.wait(END_S):
            raise BedError(f"nsight-record failed: {recorder.output()}")
    return capture, log, started.port


def joined(capture: nsight_report.api.Capture, log: Path, port: int | None = None) -> pd.DataFrame:
    """One row for each answered request of the client's log, in its order; NaN if the report does not have the request.

    ``client_ns``: the client's latency, from its send to its receipt; ``report_ns``: the report's; ``there_ns``: from the
    client's send to the first byte in; ``back_ns``: from the last byte with the driver to the receipt. The sum of the last two
    is the first minus the second. ``received_bytes``, ``reply_bytes``: according to the client, to the report.
    """
    requests = capture.stored_requests.columns(
        ["request_id", "role", "lport", "rport", "first_ns", "last_ns", "latency_ns", "reply_nbytes"],
        lambda rows: (
            (rows["role"] == "server").to_numpy(bool)
            & ((rows["lport"] == port) | (port is None)).to_numpy(bool)
        ),
    )
    place = capture.stored_messages.rows(requests["request_id"].to_numpy(), ["message_id", "byte_start"])
    requests = requests.merge(place.astype("int64"), left_on="request_id", right_on="message_id")
    load = read_load(log)
    load = load[load["recv_ns"] > 0]
    both = load.merge(
        requests,
        how="left",
        left_on=["lport", "byte_start"],
        right_on=["rport", "byte_start"],
        suffixes=("", "_in"),
    )
    client = both["recv_ns"] - both["send_ns"]
    return pd.DataFrame(
        {
            "number": both["number"],
            "request_id": both["request_id"],
            "client_ns": client,
            "report_ns": both["latency_ns"],
            "there_ns": both["first_ns"] - both["send_ns"],
            "back_ns": both["recv_ns"] - both["last_ns"],
            "received_bytes": both["response_bytes"],
            "reply_bytes": both["reply_nbytes"],
        }
    )


def told(rows: pd.DataFrame) -> str:
    """The figures, as text."""
    known = rows.dropna().astype(np.int64)
    lines = [f"{len(known):,} of {len(rows):,} answered requests of the client are requests of the report"]
    known["difference"] = known["client_ns"] - known["report_ns"]
    names = {
        "client_ns": "the client's latency",
        "report_ns": "the report's",
        "difference": "difference",
        "there_ns": "  way there: send to first byte in",
        "back_ns": "  way back: driver to receipt",
    }
    lines.append(f"{'':<36}{'median':>10}{'p99':>10}{'max':>10}")
    for name, words in names.items():
        of = known[name].to_numpy(np.int64)
        cells = [percentile(of, 50.0), percentile(of, 99.0), int(of.max()) if len(of) else None]
        lines.append(f"{words:<36}" + "".join(f"{duration(cell):>10}" for cell in cells))
    return "\n".join(lines)


def main() -> int:
    """The command."""
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("capture", type=Path, help="capture; with --record, directory for capture and log")
    p.add_argument("log", type=Path, nargs="?", help="log of nsight-load; made by --record")
    p.add_argument("--record", metavar="SERVER", help="memcached, redis or nginx: record it first")
    p.add_argument("--load", metavar="OPTIONS", default="-n 20000 -c 10", help="of the load client")
    p.add_argument("--port", type=int, help="only requests to this port")
    p.add_argument(
        "--framing",
        choices=("none", "memcached", "redis", "http"),
        default="none",
        help="of pipelined requests",
    )
    p.add_argument("--each", action="store_true", help="print every request too, as TSV")
    args = p.parse_args()
    if args.record:
        args.capture.mkdir(parents=True, exist_ok=True)
        args.capture, args.log, args.port = record(
            args.record, args.load.split(), args.capture, args.framing != "none"
        )
    if not args.log:
        p.error("LOG is missing")
    rows = joined(nsight_report.open(args.capture, framing=args.framing), args.log, args.port)
    if args.each:
        rows.to_csv(sys.stdout, sep="\t", index=False)
    print(told(rows))
    return 0 if not rows["report_ns"].isna().any() else 1


if __name__ == "__main__":
    sys.exit(main())
