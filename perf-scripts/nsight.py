# SPDX-License-Identifier: GPL-2.0-only
"""Calls and returns of an Intel PT recording: a summary, and an edge stream for NSight.

    perf script -i perf.data --itrace=cr -s perf-scripts/nsight.py [-- OPTIONS]

Runs in the interpreter within perf, and needs nothing else. It is small on purpose, since perf will lose its
interpreter: nsight-decode interprets an edge stream, not this script.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import os
import stat
from pathlib import Path

# Beside this script, where perf has its interpreter look first.
from nsight_perf import clocks, edge_stream, perf_file, problem, second_pass, summary
from nsight_perf.collect import BLOCK_ROWS, Events, Tables
from nsight_perf.recording import Recording

try:
    # perf's own module. It can be imported here, but no longer in trace_begin().
    import perf_trace_context
except ImportError:
    perf_trace_context = None

PROGRAM = "nsight.py"
ITRACE = "crepw"  # calls, returns, errors, power events, ptwrite: used if the command line has no --itrace


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(
        prog=PROGRAM,
        usage="perf script [PERF_SCRIPT_OPTIONS] -s nsight.py [-- OPTIONS]",
        description="Calls and returns of an Intel PT recording: what ran on each core.",
        epilog=problem.EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("-o", "--output", metavar="FILE", help="write the edge stream, for nsight-decode build")
    made.add_argument(
        "--clock", metavar="FILE", help="write the system clocks as clock.tsv (perf record --clock-map)"
    )
    made.add_argument("--top", type=int, default=20, metavar="N", help="functions to list (default: 20)")
    made.add_argument(
        "--api",
        choices=("tables", "process_event"),
        default="tables",
        help="how perf passes samples: both give the same result, process_event takes five times as long "
        "(default: tables)",
    )
    return made


options = parser().parse_args()
if perf_trace_context is None:
    problem.stop(
        PROGRAM,
        "it runs within perf only",
        "perf script -i perf.data --itrace=cr -s nsight.py; a perf without Python takes nsight-edges",
        problem.EXIT_USAGE,
    )
problem.default_interrupt()
gc.disable()  # there are no reference cycles among millions of rows
command = second_pass.own_command_line()
recording: Recording | None = None
other_perf: second_pass.SecondPass | None = None
output = None


def give_up(error: OSError) -> None:
    """Stop, because the output cannot be written."""
    problem.cannot_write(PROGRAM, options.output, error)


try:
    if options.output:
        output = Path(options.output).open("wb")  # noqa: SIM115  (closed in trace_end)
    writer = edge_stream.Writer(output)
except OSError as problem_with_output:
    give_up(problem_with_output)

totals = summary.Summary()
collector = (Tables if options.api == "tables" else Events)(writer, totals)
rows = collector.rows
# perf looks for this name after it has run the script.
perf_db_export_mode = options.api == "tables"


def from_pipe() -> bool:
    """Whether perf reads a pipe, which cannot be read again."""
    if command.input == "-":
        return True
    unnamed = "-i" not in command.decoding and "--input" not in " ".join(command.decoding)
    return unnamed and stat.S_ISFIFO(os.fstat(0).st_mode)


def trace_begin() -> None:
    """Called by perf when it has opened the file and is about to read it."""
    global recording, other_perf
    asks_for_errors = command.asks_for_errors()
    if command.itrace is None and hasattr(perf_trace_context, "perf_set_itrace_options"):
        perf_trace_context.perf_set_itrace_options(perf_script_context, ITRACE)  # type: ignore[name-defined]  # noqa: F821
        asks_for_errors = True
    if from_pipe():
        return
    try:
        recording = perf_file.read(command.input)
        recording.check()
    except problem.Unusable as error:
        problem.stop(PROGRAM, str(error), error.hint, error.code)
    if not asks_for_errors:
        other_perf = second_pass.SecondPass(str(Path("/proc/self/exe").readlink()), command)
        atexit.register(other_perf.abandon)


def flush() -> None:
    """Write and add up the rows so far."""
    try:
        collector.flush()
    except OSError as error:
        give_up(error)


# -- what perf calls with --api tables: the names and the order of arguments are perf's --


def evsel_table(number, name, *_):
    collector.event_type(number, name)


def thread_table(number, machine, process, pid, tid, *_):
    collector.thread(number, pid, tid)


def dso_table(number, machine, short_name, long_name, *_):
    collector.dso(number, short_name, long_name)


def symbol_table(number, dso, start, end, binding, name, *_):
    collector.symbol(number, dso, start, end, name)


def sample_table(*row):
    rows.append(row)
    if len(rows) >= BLOCK_ROWS:
        flush()


def synth_data(number, config, raw, *_):
    if rows:
        collector.packet(config, raw)


def context_switch_table(number, machine, time, cpu, thread_out, comm_out, thread_in, comm_in, flags, *_):
    if recording is None:
        collector.switch(time, cpu, thread_out, thread_in, flags)


# -- with --api process_event -------------------------------------------------------------


def process_event(given):
    try:
        collector.process_event(given)
    except OSError as error:
        give_up(error)


def context_switch(time, cpu, pid, tid, other_pid, other_tid, machine_pid, out, preempted, *_):
    if recording is None:
        code = edge_stream.SWITCH_OUT if out else edge_stream.SWITCH_IN
        collector.events.append(edge_stream.Event(time, cpu, pid, tid, code, int(preempted)))


# -- with both ----------------------------------------------------------------------------


def auxtrace_error(kind, code, cpu, pid, tid, ip, time, message, mode, *_):
    collector.events.append(second_pass.error(time, cpu, pid, tid, code))


def throttle(time, *_):
    if recording is None:
        collector.events.append(edge_stream.Event(time, -1, -1, -1, edge_stream.LOST, 0))


def remarks() -> list[tuple[str, str]]:
    """What limits the result besides single losses, each with its fix."""
    if recording is None:
        return [("read from a pipe: full trace buffers and lost records are not seen", "record to a file")]
    said = recording.remarks()
    for cpu, (*_, before_last, _last) in sorted((c, a) for c, a in recording.last_aux.items() if len(a) > 1):
        core = totals.cores.get(cpu)
        if core and command.whole() and core.last < before_last:
            said.append(
                (
                    f"core {cpu}: decoded until {summary.when(core.last)}, but the recording goes on: perf was "
                    "interrupted or gave up",
                    "let it run to its end",
                )
            )
    if not collector.n_edges:
        said.append(("perf gave no call and no return", "decode with --itrace=cr; record without branch=0"))
    return said


def write_clock(known: list[clocks.Clock]) -> str:
    """Write clock.tsv if it was requested; returns a text about the clocks."""
    if not known:
        return "no clock in the recording: no CLOCK_REALTIME" if options.clock else ""
    said = clocks.summary(known)
    if options.clock:
        ends = [core.last for core in totals.cores.values()] + [clock.time for clock in known]
        lines = clocks.clock_tsv(known, max(ends))
        if not lines:
            return said + "; perf does not tell how they relate to TSC, so none are written"
        try:
            Path(options.clock).write_text("\n".join(lines) + "\n")
        except OSError as error:
            problem.cannot_write(PROGRAM, options.clock, error)
        said += f"; written to {options.clock}"
    return said


def trace_end() -> None:
    """Called by perf when it has read everything."""
    flush()
    said = remarks()
    if other_perf:
        atexit.unregister(other_perf.abandon)
        found, about_errors = other_perf.errors()
        collector.events += found
        said += about_errors
    events = collector.events + (recording.events if recording else [])
    n_switches = len(recording.switches) if recording else 0
    try:
        writer.events(list(zip(*events)))
        writer.events(recording.switches.columns if recording else [])
        writer.thread_names(recording.names if recording else [])
        if output:
            output.close()
    except OSError as error:
        give_up(error)
    lines = ["Lost or not decoded", *(summary.losses(events, said) or ["  nothing"])]
    lines += summary.report(totals, writer.names, options.top)
    about_clock = write_clock(recording.clocks if recording else [])
    if about_clock:
        lines += ["", f"Clocks: {about_clock}"]
    if options.output:
        lines += [
            "",
            f"{collector.n_edges:,} edges, {len(events) + n_switches:,} events written to {options.output}",
        ]
    try:
        print("\n".join(lines), flush=True)
    except BrokenPipeError:
        problem.drop_stdout()
