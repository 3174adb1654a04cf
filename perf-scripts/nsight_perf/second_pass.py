# SPDX-License-Identifier: GPL-2.0-only
"""Decode errors, if the user's own perf command does not request them.

perf reports decode errors to a script only with `e` in --itrace. `--itrace=cr`, which many people write out of
habit, would hide every overflow. In that case another perf, which decodes but makes no samples, reports them: it takes a
tenth of the time, on another core.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from . import edge_stream as stream

PR_SET_PDEATHSIG = 1  # of linux/prctl.h
PERF_OVERFLOW = 7  # INTEL_PT_ERR_OVR of perf's decoder

# perf options that change what is decoded, by whether they take a value.
DECODING = {
    "-i": True, "--input": True, "-f": False, "--force": False, "-k": True, "--vmlinux": True,
    "--kallsyms": True, "--symfs": True, "--time": True, "-C": True, "--cpu": True, "--guest-code": False,
    "--guestmount": True, "--guestkallsyms": True, "--guestmodules": True, "--guestvmlinux": True,
    "--vm-time-correlation": True,
}  # fmt: skip
_LINE = re.compile(
    rb"^ *instruction trace error type \d+ time (\d+)(?:\.(\d{9}))?(?: machine_pid -?\d+ vcpu -?\d+)?"
    rb" cpu (-?\d+) pid (-?\d+) tid (-?\d+) ip \S+ code (\d+):"
)


class CommandLine:
    """perf's own command line, as far as it matters for decoding."""

    def __init__(self, argv: Sequence[str]) -> None:
        self.itrace: str | None = None
        self.input = "perf.data"
        self.decoding: list[str] = []
        words = list(argv[1:])
        if "--" in words:
            words = words[: words.index("--")]
        while words:
            word = words.pop(0)
            name, equals, value = word.partition("=")
            if name == "--itrace":
                self.itrace = value if equals else "cr"
                continue
            short = re.match(r"^-[ikC](?=.)", word)
            if short:
                name, value, equals = short[0], word[2:], "="
            takes = DECODING.get(name)
            if takes is None:
                continue
            self.decoding.append(word)
            if takes and not equals and words:
                value = words.pop(0)
                self.decoding.append(value)
            if name in ("-i", "--input"):
                self.input = value

    def asks_for_errors(self) -> bool:
        """Whether perf will report decode errors to the script."""
        # The letters after + or - are flags of e and d.
        return self.itrace is not None and "e" in re.sub(r"[+-][a-z]", "", self.itrace)

    def whole(self) -> bool:
        """Whether the whole recording is decoded."""
        return not any(word.startswith(("--time", "-C", "--cpu")) for word in self.decoding)


def own_command_line() -> CommandLine:
    """The command line of the perf in which this runs."""
    words = Path("/proc/self/cmdline").read_bytes().split(b"\0")[:-1]
    return CommandLine([os.fsdecode(word) for word in words])


def parse_error(line: bytes) -> stream.Event | None:
    """The error that perf prints in ``line``, if any."""
    found = _LINE.match(line)
    if not found:
        return None
    seconds, nanoseconds, cpu, pid, tid, code = (int(n or 0) for n in found.groups())
    return error(seconds * 1_000_000_000 + nanoseconds, cpu, pid, tid, code)


# perf's own counts at its end: a check that no line was missed.
_COUNT = re.compile(
    rb"(?:Warning:\n)?(\d+) instruction trace errors?\n\n?|Warning:\nAUX data lost \d+ times.*\n\n?"
)


def counted(said: bytes) -> int:
    """The number of decode errors that perf reports on stderr."""
    return sum(int(found[1] or 0) for found in _COUNT.finditer(said))


def other_words(said: bytes) -> bytes:
    """Everything else that perf wrote to stderr."""
    return _COUNT.sub(b"", said)


def missed(errors: Sequence[stream.Event], said: bytes) -> list[tuple[str, str]]:
    """A remark if perf counted more decode errors than it reported."""
    n_missed = counted(said) - len(errors)
    if n_missed <= 0:
        return []
    return [
        (f"perf counted {n_missed:,} more decode errors than it told where", "try another version of perf")
    ]


def error(time: int, cpu: int, pid: int, tid: int, code: int) -> stream.Event:
    """A decode error from perf's error code."""
    kind = stream.OVERFLOW if code == PERF_OVERFLOW else stream.ERROR
    return stream.Event(time, cpu, pid, tid, kind, code)


def end_with_parent() -> Callable[[], None]:
    """For preexec_fn: the child is killed when this process ends, however it ends.

    perf can read a damaged file for ever, and would continue when nobody waits for it any more.
    """
    libc = ctypes.CDLL(None)  # before the fork, where loading is safe
    parent = os.getpid()

    def in_child() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended in between
            os.kill(os.getpid(), signal.SIGKILL)

    return in_child


class SecondPass:
    """Runs the other perf in parallel with this one."""

    def __init__(self, perf: str, command: CommandLine) -> None:
        # Files, not pipes: nobody reads before the end, and a full pipe would stall it.
        self._output, self._said = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [perf, "script", *command.decoding, "--itrace=e"],
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._said,
            preexec_fn=end_with_parent(),
        )

    def errors(self) -> tuple[list[stream.Event], list[tuple[str, str]]]:
        """Every error, and remarks if something is wrong. Waits for the other perf."""
        code = self._process.wait()
        with self._output, self._said:
            self._output.seek(0)
            self._said.seek(0)
            found = [event for event in map(parse_error, self._output) if event]
            remarks = missed(found, self._said.read())
        if code:
            remarks.append(
                ("a second perf, which should tell of decode errors, failed", "decode with --itrace=cre")
            )
        return found, remarks

    def abandon(self) -> None:
        """Kill it; its result is no longer needed."""
        self._process.kill()
        self._process.wait()
