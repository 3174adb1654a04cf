# SPDX-License-Identifier: GPL-2.0-only
"""The cost of the recording itself is one category, summed up; the cause says where most of it was spent."""

from types import SimpleNamespace

import pytest
from machinery.made_up.tables import table
from nsight_report.anomalies import Selection
from nsight_report.attribution import attribute
from nsight_report.attribution.categories import categorise, load
from nsight_report.attribution.causes import OWN_COST
from nsight_report.summary import cause_with_subject, own_cost

KERNEL = "[kernel.kallsyms]"


@pytest.mark.parametrize(
    ("kind", "subject", "dso"),
    [
        ("thread", "bpftrace (this recording)", ""),
        ("thread", "sh (this recording)", ""),
        ("hardirq", "irq_work", ""),
        ("hardirq", "asm_sysvec_irq_work", ""),
        ("exception", "asm_exc_int3", ""),
        ("function", "perf_event_output", KERNEL),
        ("function", "__perf_event_output_id_sample", KERNEL),
        ("function", "bpf_perf_event_output_tp", KERNEL),
        ("function", "perf_trace_run_bpf_submit", KERNEL),
        ("function", "uprobe_notify_resume", KERNEL),
        ("function", "kprobe_ftrace_handler", KERNEL),
        ("function", "bpf_prog_6deef7357e7b4530_sock_recv_lengt", "[bpf]"),
        ("function", "bpf_prog_6deef7357e7b4530_cgroup_filter", "[bpf]"),
    ],
)
def test_work_of_the_recording_is_its_own_cost(kind: str, subject: str, dso: str):
    category = categorise(load(), kind, subject, dso)[0]
    # A BPF program of another tool does not count as this recording.
    assert category == (OWN_COST if "cgroup_filter" not in subject else "BPF")


@pytest.mark.parametrize("name", ["perf", "bpftrace", "nsight-report", "tcpdump"])
def test_another_tracer_is_a_program_like_any_other(name: str):
    assert categorise(load(), "thread", name, "")[0] == name


def _diagnosed(path: str = ""):
    """Messages 1 and 2, 1000 and 500 ns slower than usual (100); anomalies by (message, kind, subject, ns).

    ``path``: path of the anomalies named hog.
    """
    told = [
        (1, "thread", "bpftrace (this recording)", 500), (1, "hardirq", "asm_sysvec_irq_work", 100), (1, "thread", "hog", 400),
        (2, "thread", "perf (this recording)", 50), (2, "thread", "hog", 450),
    ]  # fmt: skip
    anomalies = [
        {
            "message_id": m, "side": "A", "anomaly": "context", "subject": subject, "kind": kind,
            "observed_ns": ns, "deviation_ns": ns, "took_ns": ns, "end_ns": ns, "other_message_id": -1, "path": path if subject == "hog" else "",
        }
        for m, kind, subject, ns in told
    ]  # fmt: skip
    compared = [
        {"message_id": m, "role": "slow", "latency_ns": latency, "baseline_latency_ns": 100, "noise_ns": 0}
        for m, latency in ((1, 1100), (2, 600))
    ]
    return attribute(table("anomalies", anomalies), table("compared", compared), Selection())


def test_cause_names_what_most_of_it_was_spent_in():
    causes = {r["cause"]: r for r in _diagnosed()[2].to_pylist()}
    own = causes[f"{OWN_COST} (A)"]
    assert own["subject"] == "bpftrace (this recording)"
    assert own["subject_share"] == 500 / 650
    row = SimpleNamespace(**own)
    assert cause_with_subject(row) == f"{OWN_COST} (A): bpftrace (this recording)"
    assert cause_with_subject(SimpleNamespace(**causes["hog (A)"])) == "hog (A)"


def test_own_cost_is_summed_over_its_kinds():
    anomalies, coverage, _, _ = (t.to_pandas() for t in _diagnosed())
    cost = own_cost(SimpleNamespace(anomalies=anomalies, coverage=coverage))
    assert cost is not None
    # 600 of 1000 and 50 of 500 ns.
    assert cost.median_ns == 325
    assert cost.share == pytest.approx(650 / 1500)


@pytest.mark.parametrize(
    ("path", "ours"),
    [
        ("NET_RX > bpf_trace_run3 > bpf_prog_a1723078b29742e3_netif_receive_s > hog", True),
        ("read > bpf_trace_run3", True),
        ("NET_RX > bpf_prog_a1723078b29742e3_cgroup_filter > hog", False),
        ("NET_RX > ip_rcv > hog", False),
    ],
)
def test_helpers_of_the_probes_programs_are_theirs(path: str, ours: bool):
    causes = {r["cause"]: r["total_deviation_ns"] for r in _diagnosed(path)[2].to_pylist()}
    assert causes[f"{OWN_COST} (A)"] == (1500 if ours else 650)
