# SPDX-License-Identifier: GPL-2.0-only
"""Every way to an edge stream gives the edges that perf prints, and each other's events."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from machinery.pt_emulation.fixtures import unpack

from conftest import skip_or_fail
from perf_scripts import runs

pytestmark = pytest.mark.tools


def same(stream: runs.Stream, expected: list[runs.Edge]) -> None:
    """Compare edge by edge; report the first difference."""
    for number, (made, wanted) in enumerate(zip(stream.edges, expected)):
        assert made == wanted, number
    assert len(stream.edges) == len(expected)
    assert len(expected) > 20_000


@pytest.mark.parametrize("api", ["tables", "process_event"])
@pytest.mark.parametrize("name", unpack.names())
def test_script_writes_the_edges_that_perf_prints(name, api, captures, edges, tmp_path):
    done = runs.by_script(captures[name], "-o", tmp_path / "out", "--api", api)
    assert done.returncode == 0, done.stderr
    same(runs.read_stream(tmp_path / "out"), edges[name])


@pytest.mark.parametrize("name", unpack.names())
def test_filter_writes_the_edges_that_perf_prints(name, captures, edges, tmp_path):
    done = runs.by_filter(captures[name], tmp_path / "out")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    same(runs.read_stream(tmp_path / "out"), edges[name])


@pytest.mark.parametrize("name", unpack.names())
def test_program_and_script_write_the_same_events(name, captures, edges, tmp_path):
    done = runs.by_program(captures[name], tmp_path / "program")
    assert done.returncode == 0, done.stderr
    runs.by_script(captures[name], "-o", tmp_path / "script", itrace="crepw")
    program, script = (runs.read_stream(tmp_path / n) for n in ("program", "script"))
    same(program, edges[name])
    assert sorted(program.events) == sorted(script.events)
    assert program.codes(runs.CBR)  # the emulated machine tells its frequency once


def test_jumps_are_left_out(captures, edges, tmp_path):
    # --itrace=b lists every branch: branches that are neither calls nor returns must be left out.
    for route in ("script", "filter"):
        if route == "script":
            runs.by_script(captures["lock"], "-o", tmp_path / route, itrace="b")
        else:
            runs.by_filter(captures["lock"], tmp_path / route, itrace="b")
        same(runs.read_stream(tmp_path / route), edges["lock"])


def test_switches_are_those_of_the_file(captures, tmp_path):
    done = runs.perf("script", *runs.inputs(captures["quiet"]), "--no-itrace", "--show-switch-events", "--ns")
    lines = [line for line in done.stdout.splitlines() if "PERF_RECORD_SWITCH" in line]
    runs.by_script(captures["quiet"], "-o", tmp_path / "out")
    stream = runs.read_stream(tmp_path / "out")
    coming, going = stream.codes(runs.SWITCH_IN), stream.codes(runs.SWITCH_OUT)
    assert len(coming) == sum(" IN " in line for line in lines) > 1000
    assert len(going) == sum(" OUT " in line for line in lines)
    assert sum(event[5] for event in going) == sum(" OUT preempt " in line for line in lines) > 0
    # "comm tid [cpu] s.ns: PERF_RECORD_SWITCH_CPU_WIDE IN prev pid/tid: ..."
    told = [line.split("[")[0].split()[-1] for line in lines if " IN " in line]
    assert sorted(int(tid) for tid in told) == sorted(event[3] for event in coming)


def test_names_of_threads_are_those_of_the_file(captures, tmp_path):
    done = runs.perf("script", *runs.inputs(captures["quiet"]), "--no-itrace", "--show-task-events", "--ns")
    # "comm tid [cpu] s.ns: PERF_RECORD_COMM exec: name:pid/tid"
    told = re.findall(r"PERF_RECORD_COMM(?: exec)?: (.*):(-?\d+)/(-?\d+)$", done.stdout, re.M)
    for route in ("script", "program"):
        if route == "script":
            runs.by_script(captures["quiet"], "-o", tmp_path / route)
        else:
            runs.by_program(captures["quiet"], tmp_path / route)
        threads = runs.read_stream(tmp_path / route).threads
        assert sorted((n.decode(), str(p), str(t)) for _, p, t, n in threads) == sorted(told)
        assert (len(told) > 50, b"mc-worker" in {t[3] for t in threads}) == (True, True)


def test_symbols_come_before_the_edges_that_name_them(captures, tmp_path):
    # read_stream() looks each name up when it reads the edges, and would fail.
    runs.by_filter(captures["hog"], tmp_path / "out")
    stream = runs.read_stream(tmp_path / "out")
    assert stream.names[0] == ("", "")
    assert stream.blocks.count(2) > 1
    assert len(set(stream.names)) == len(stream.names)


@pytest.mark.trixie
def test_script_and_filter_serve_a_newer_perf(captures, edges):
    # The directory must be below this checkout: the other system sees no other directory of this one.
    trixie = runs.TOP / "tests/machinery/guest/trixie"
    ready = subprocess.run([trixie, "--prepare"], capture_output=True, text=True)
    if ready.returncode:
        skip_or_fail("trixie", ready.stderr.strip())
    directory = runs.TOP / "build/tmp/perf_scripts"
    capture = unpack.unpack("overflow", directory)
    common = [str(trixie), "perf", "script", *runs.inputs(capture), "--itrace=cr"]
    script = [*common, "-s", str(runs.SCRIPT), "--", "-o", str(directory / "script")]
    dlfilter = [*common, "--dlfilter", str(runs.FILTER), "--dlarg", str(directory / "filter")]
    for argv in (script, dlfilter):
        done = subprocess.run(argv, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def plain(made: list[runs.Edge]) -> list[tuple]:
        # Newer ones have names for what 6.1 calls "@plt".
        return [
            (*e[:6], e[7][0].replace("@plt", "") and e[7][1], e[8]) for e in made if "@plt" not in e[7][0]
        ]

    streams = [runs.read_stream(directory / name) for name in ("script", "filter")]
    assert streams[0].edges == streams[1].edges
    assert [e[:6] for e in streams[0].edges] == [e[:6] for e in edges["overflow"]]
    assert plain(streams[0].edges) == plain(edges["overflow"])
    assert len(streams[0].codes(runs.OVERFLOW)) == 1


def test_output_is_the_same_with_both_ways_of_perf(captures):
    tables, events = (runs.by_script(captures["hog"], "--api", api) for api in ("tables", "process_event"))
    assert tables.stdout == events.stdout
    assert len(tables.stdout) > 500


def test_filter_is_listed_with_what_it_does():
    done = runs.perf(
        "script", "--list-dlfilters", env={"PERF_EXEC_PATH": str(Path(runs.SCRIPTS)), "PATH": "/usr/bin"}
    )
    assert "nsight-edges.so" in done.stdout
    assert "calls and returns of Intel PT" in done.stdout
