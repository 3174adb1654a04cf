# SPDX-License-Identifier: GPL-2.0-only
"""Runs nsight-report in forked processes, one after the other, with its imports already loaded: this saves a second for each.

As a program: reads one request per line ({args, out, err, cwd, environ}) and prints the exit code of each.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

_PR_SET_PDEATHSIG = 1
REPORT = Path(__file__).resolve().parents[3] / "tools/nsight-report"
#: Modules that nsight-report imports only on demand.
MODULES = (
    "nsight_report.cli",
    "nsight_report.api",
    "nsight_report.export.terminal",
    "matplotlib.figure",
    "jinja2",
)


def run(args: Sequence[object], timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """Like subprocess.run of nsight-report with captured text."""
    process = _started()
    assert process.stdin
    assert process.stdout
    words = [str(a) for a in args]
    with tempfile.TemporaryDirectory() as directory:
        out, err = (Path(directory, name) for name in ("out", "err"))
        request = {
            "args": words,
            "out": str(out),
            "err": str(err),
            "cwd": str(Path.cwd()),
            "environ": dict(os.environ),
        }
        print(json.dumps(request), file=process.stdin, flush=True)
        hangs = threading.Timer(timeout, os.killpg, (process.pid, signal.SIGKILL))
        hangs.start()
        code = process.stdout.readline()
        hangs.cancel()
        if not code:
            _started.cache_clear()
            raise subprocess.TimeoutExpired(words, timeout)
        return subprocess.CompletedProcess(words, int(code), out.read_text("utf-8"), err.read_text("utf-8"))


@cache
def _started() -> subprocess.Popen[str]:
    """The program. It ends with this process, which holds the other end of its standard input."""
    argv = [sys.executable, str(Path(__file__).resolve())]
    return subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )


def main() -> None:
    """Serve one request per line."""
    _die_with_parent()
    sys.path.insert(0, str(REPORT))
    for name in MODULES:
        __import__(name)
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if not pid:
            _die_with_parent()
            _become(request)
            sys.modules["nsight_report.cli"].run()
            return
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _die_with_parent() -> None:
    """End with the parent: otherwise a hanging process would outlive a killed run."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def _become(request: dict[str, object]) -> None:
    """Put this process into the state of a freshly started one."""
    for number, name in enumerate((os.devnull, request["out"], request["err"])):
        file = os.open(str(name), os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(file, number)
        os.close(file)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(n, mode, encoding="utf-8", closefd=False) for n, mode in enumerate("rww")
    )
    os.chdir(str(request["cwd"]))
    os.environ.clear()
    os.environ.update(request["environ"])  # type: ignore[call-overload]
    time.tzset()
    sys.argv = ["nsight-report", *request["args"]]  # type: ignore[misc]


if __name__ == "__main__":
    main()
