# SPDX-License-Identifier: GPL-2.0-only
"""``nsight-report waits`` on a capture whose threads are known: the list, its options, and requests that it rejects."""

import json
import re
from pathlib import Path

import pytest
from machinery.made_up.tables import table
from nsight_report import losses
from nsight_report.pipeline import Pipeline
from nsight_report.stages import BY_NAME
from nsight_report.tables import schema
from waits_by_hand import on, ran, waited

FORMATS = Path(__file__).resolve().parents[3] / "Documentation/formats.md"


MS = 1_000_000


@pytest.fixture
def waiting(capture):
    """Thread 10 waits for a lock of thread 20 from 2 to 6 of 8 ms. Thread 20 sleeps until 5 ms of these; otherwise it runs."""
    timer = {"context": "hardirq", "symbol": "local_timer"}
    waits = [
        waited(10, 2 * MS, 6 * MS, "futex", by=20),
        waited(20, 1 * MS, 5 * MS, "nanosleep", by=20, **timer),
    ]
    states = [ran(10, 0, 2 * MS), ran(10, 6 * MS, 8 * MS), ran(20, 0, 1 * MS, 1), ran(20, 5 * MS, 8 * MS, 1)]
    states += [ran(w["tid"], w["start_ns"], w["end_ns"], 0, w["state"]) for w in waits]
    contexts = [on(cpu, 0, 8 * MS, "thread", "", tid) for cpu, tid in ((0, 10), (1, 20))]
    tables = {"thread_states": table("thread_states", states), "contexts": table("contexts", contexts)}
    tables |= {"waits": table("waits", waits)}
    tables |= {name: schema.empty(name) for name in BY_NAME["contexts"].tables if name not in tables}
    pipeline = Pipeline(capture)
    made_from = pipeline._made_from(BY_NAME["contexts"])
    lost = {"losses-contexts": losses.Ledger("contexts").table()}
    pipeline.store.save("contexts", {**tables, **lost}, made_from)
    return capture


@pytest.fixture
def made(run, waiting):
    """The object of the command with these options."""

    def call(*options):
        done = run("waits", waiting, "--json", *options)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return call


def documented():
    table = FORMATS.read_text().partition("### nsight-report waits --json\n")[2].partition("\n#")[0]
    return {
        word for cell in re.findall(r"^\| ([^|]*) \|", table, re.M) for word in re.findall(r"`(\w+)`", cell)
    }


def test_keys_are_those_of_the_documentation(made):
    threads = made("-n", "0")
    assert threads["n_threads"] == len(threads["threads"]) == 2
    one = made("--thread", str(threads["threads"][0]["tid"]))
    assert set(threads) | set(one) == documented()


def test_threads_are_listed_by_what_they_ran(made):
    listed = [(t["tid"], t["comm"], t["running_ns"], t["waiting_ns"]) for t in made()["threads"]]
    assert listed == [(10, "server", 4 * MS, 4 * MS), (20, "worker", 4 * MS, 4 * MS)]
    assert len(made("-n", "1")["threads"]) == 1


def test_chains_are_of_the_time_that_is_looked_at(made):
    """From 3 ms to the end: 3 ms of the wait remain; in these the other thread sleeps 2 and runs 1."""
    one = made("--thread", "server", "--from", "3ms", "--to", "1s")
    assert (one["from_ns"], one["to_ns"]) == (3 * MS, 8 * MS)
    told = [(c["chain"], c["total_ns"], c["share"]) for c in one["chains"]]
    lock = "waited in futex for worker[20] (lock)"
    assert told == [(f"{lock}, which slept in nanosleep", 2 * MS, 0.4), (f"{lock}, which ran", 1 * MS, 0.2)]
    assert [(node["text"], node["ns"]) for node in one["tree"]] == [(lock, 3 * MS), ("ran", 2 * MS)]
    (longest,) = one["longest"]
    assert (longest["start_ns"], longest["ns"]) == (3 * MS, 3 * MS)


@pytest.mark.parametrize(
    ("options", "said", "hint"),
    [
        (("--thread", "nobody"), "no thread 'nobody' was there", "lists threads"),
        (("--from", "10ms"), "nothing was recorded from 10.0 ms", "since its begin"),
        (("--from", "2ms", "--to", "1ms"), "nothing was recorded from 2.00 ms to 1.00 ms", "since its begin"),
        (("--from", "1"), "'1' is not a time such as 1.5s", ""),
        (("--depth", "65"), "65 is more than 64", ""),
    ],
)
def test_what_cannot_be_asked_is_a_wrong_usage(run, waiting, options, said, hint):
    done = run("waits", waiting, *options)
    assert done.returncode == 2
    assert said in done.stderr and hint in done.stderr
    assert "Traceback" not in done.stderr


def test_text_has_a_line_for_each_link(run, waiting):
    done = run("waits", waiting, "--thread", "10")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1:5] == [
        "    4.00 ms  50%  ran (2 times)",
        "    4.00 ms  50%  waited in futex for worker[20] (lock)",
        "    3.00 ms  38%    which slept in nanosleep",
        "    1.00 ms  12%    which ran",
    ]
    listed = run("waits", waiting, "-n", "1").stdout
    assert "next: --thread" in listed and "1 more: -n 0 prints all" in listed


def test_recording_without_threads_is_bad_input(run, capture):
    """The made-up capture has messages and Intel PT, but no scheduler records."""
    done = run("waits", capture)
    assert done.returncode == 3
    assert "contains no thread states" in done.stderr
