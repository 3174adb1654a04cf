# SPDX-License-Identifier: GPL-2.0-only
"""Run the native programs of this package on untrusted files, within limits."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
from pathlib import Path
from typing import IO

from ..errors import BadInput, Missing, OutputError

#: The package's own programs; in a checkout, links to the output of `make build` and `make decoder`.
_BIN = Path(__file__).parents[1] / "bin"

# Decoding takes about 0.2 us per byte; ten times that is a hang, not a large file.
_SECONDS_BASE = 60
_SECONDS_PER_MB = 2
_BYTES_BASE = 2 << 30
_BYTES_PER_BYTE = 16
# Each thread of nsight-decode has a stack, an arena and code of its own; by default it starts no more than this many.
_BYTES_PER_THREAD = 512 << 20
_MOST_THREADS = 8


def find(name: str) -> Path:
    """The program ``name``: this package's own, else on PATH. Raises Missing."""
    if (_BIN / name).is_file():
        return _BIN / name
    if on_path := shutil.which(name):
        return Path(on_path)
    raise Missing(f"{name} is not built", "in a checkout run: make build; else install nsight-report again")


def granted(n_cores: int, input_bytes: int) -> int:
    """Bytes of address space that a program may take."""
    return _BYTES_BASE + _BYTES_PER_THREAD * min(n_cores, _MOST_THREADS) + _BYTES_PER_BYTE * input_bytes


def run(name: str, args: list[str], input_bytes: int, stdout: IO[bytes] | None = None) -> None:
    """Run program ``name``; ``input_bytes``, the size of its input, scales its limits.

    Its output goes to the file ``stdout``, by default nowhere.

    Its error message becomes BadInput or OutputError; so do a crash and a hang.
    """
    program = find(name)
    memory = granted(len(os.sched_getaffinity(0)), input_bytes)
    seconds = _SECONDS_BASE + _SECONDS_PER_MB * (input_bytes >> 20)
    with subprocess.Popen(
        [str(program), *args],
        stdin=subprocess.DEVNULL,
        stdout=stdout or subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        # not preexec_fn: Python code between fork and exec may deadlock in a threaded process
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(process.pid, resource.RLIMIT_AS, (memory, memory))
            resource.prlimit(process.pid, resource.RLIMIT_CORE, (0, 0))
        try:
            _, said = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            raise BadInput(
                f"{name} {args[0]}: not done after {seconds} s",
                "the file is damaged, or the machine too busy",
            ) from None
    _check(name, args, process.returncode, said)


def _check(name: str, args: list[str], code: int, said: str) -> None:
    if code == 0:
        return
    message, hint = f"{name} {args[0]}: exit code {code}", ""
    if code < 0:
        message, hint = f"{name} {args[0]}: killed by signal {-code}", "the file is damaged: record again"
    for line in said.splitlines():
        if line.startswith("error: "):
            message = line.removeprefix("error: ")
        elif line.startswith("hint: "):
            hint = line.removeprefix("hint: ")
    if code == OutputError.exit_code:
        raise OutputError(message, hint)
    raise BadInput(message, hint)
