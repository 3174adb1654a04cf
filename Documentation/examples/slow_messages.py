# SPDX-License-Identifier: GPL-2.0-only
"""Where the time of the slow messages went: the tables of a capture as pandas DataFrames.

    PYTHONPATH=tools/nsight-report python Documentation/examples/slow_messages.py CAPTURE [FIGURE]

Documentation/api.md goes through it line by line.
"""

from __future__ import annotations

import sys

import nsight_report
import pandas as pd

US = 1_000  # all times are ns


def table_of_causes(capture: nsight_report.Capture) -> pd.DataFrame:
    """A row a cause: how many slow messages it delayed, and by how many us on average and at most."""
    anomalies = capture.anomalies
    cause = anomalies["category"].astype(str) + " (" + anomalies["side"].astype(str) + ")"
    per_message = anomalies.groupby([cause.rename("cause"), "message_id"])["deviation_ns"].sum()
    found = per_message.groupby("cause").agg(messages="count", mean_us="mean", most_us="max", total="sum")
    found = found.sort_values("total", ascending=False).drop(columns="total")
    return found.assign(mean_us=found["mean_us"] / US, most_us=found["most_us"] / US)


def cores_of(capture: nsight_report.Capture, message_id: int) -> pd.DataFrame:
    """What ran on the message's cores, in us: calls clipped to its lifetime, each without what it called."""
    calls = capture.lifetime(message_id)
    time = calls.groupby(["side", "kind", "symbol"], observed=True)["within_self_ns"].sum()
    return (time[time > 0].sort_values(ascending=False) / US).rename("us").reset_index()


def tail_by_connection(capture: nsight_report.Capture) -> pd.DataFrame:
    """Latency by connection in us: a tail that is on one connection only has its cause there."""
    received = capture.messages[capture.messages["direction"] == "rx"]
    latency = received.groupby("conn_id")["latency_ns"]
    return pd.DataFrame(
        {"messages": latency.count(), "p50_us": latency.median() / US, "max_us": latency.max() / US}
    )


def main(path: str, figure: str | None = None) -> None:
    """Print the tables; draw the lifetime of the slowest message if ``figure`` names a file."""
    capture = nsight_report.open(path)
    print(f"{len(capture.messages)} messages, {len(capture.coverage)} among the slow messages\n")
    print(table_of_causes(capture).head(10).round(1).to_string(), "\n")
    slowest = capture.coverage.sort_values("latency_ns")["message_id"].iloc[-1]
    print(f"message {slowest}:")
    print(cores_of(capture, slowest).head(10).round(1).to_string(index=False), "\n")
    print(tail_by_connection(capture).sort_values("max_us").tail(5).round(1).to_string())
    if figure:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
        from nsight_report.plots import timeline, timeline_axes

        rows = timeline.rows(capture, slowest)
        drawing, axes = pyplot.subplots(figsize=(11, timeline_axes.height_inches(rows)))
        timeline_axes.plot(rows, f"message {slowest}", ax=axes)
        drawing.savefig(figure, bbox_inches="tight")


if __name__ == "__main__":
    main(*sys.argv[1:])
