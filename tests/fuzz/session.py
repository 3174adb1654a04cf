# SPDX-License-Identifier: GPL-2.0-only
"""One fuzzing session of one target: libFuzzer's output, and the files that it left."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from .targets import Target

#: Files that libFuzzer writes for an input that it stopped at.
ARTEFACTS = ("crash-*", "timeout-*", "oom-*", "leak-*")
#: libFuzzer uses the process's peak RSS, which survives exec() and is then the forking process's: so a small shell forks it.
_SMALL = ("sh", "-c", '"$@"; exit $?', "sh")
#: Extra time beyond the target's own limit: then it was killed, which is a finding too.
GRACE_S = 60


@dataclass(frozen=True)
class Result:
    """Results of a session. ``edges``: covered edges; ``findings``: files that reproduce the faults."""

    target: Target
    executions: int
    seconds: float
    edges: int
    peak_mb: int
    findings: list[Path]
    ended: bool
    log: str

    @property
    def passed(self) -> bool:
        """It ended by itself, ran inputs, and found nothing."""
        return self.ended and not self.findings and self.executions > 0


def replay(target: Target, inputs: list[Path], seconds: int = 600) -> Result:
    """Run each of these inputs once."""
    return _run(target, ["-runs=1", *map(str, inputs)], seconds, Path(tempfile.gettempdir()), len(inputs))


def fuzz(target: Target, kept: Path, options: list[str], seconds: int) -> Result:
    """Fuzz in a copy of the corpus; findings, and the grown corpus, are stored in ``kept``."""
    kept.mkdir(parents=True, exist_ok=True)
    corpus = kept / "corpus"
    corpus.mkdir(exist_ok=True)
    for path in sorted(target.corpus.iterdir()):
        shutil.copyfile(path, corpus / path.name)
    return _run(target, [*options, str(corpus)], seconds, kept)


def _run(target: Target, options: list[str], seconds: int, kept: Path, given: int = 0) -> Result:
    before = _artefacts(kept)
    argv = target.command("-print_final_stats=1", f"-artifact_prefix={kept}/", *options)
    since = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="nsight-fuzz-") as work, open(Path(work) / "log", "w+b") as log:
        process = subprocess.Popen(
            [*_SMALL, *argv],
            cwd=work,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(seconds + target.timeout + GRACE_S)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        log.seek(0)
        text = log.read().decode(errors="replace")
    found = sorted(_artefacts(kept) - before)
    executions = max(_last(r"^stat::number_of_executed_units: +(\d+)", text), _executed(text), 0)
    return Result(
        target,
        executions or (given if code == 0 else 0),
        time.monotonic() - since,
        _last(r"cov: (\d+)", text),
        _last(r"^stat::peak_rss_mb: +(\d+)", text),
        found,
        code == 0,
        text,
    )


def _artefacts(directory: Path) -> set[Path]:
    return {path for pattern in ARTEFACTS for path in directory.glob(pattern)}


def _executed(text: str) -> int:
    return _last(r"^#(\d+)\t", text)


def _last(pattern: str, text: str) -> int:
    found = re.findall(pattern, text, re.M)
    return int(found[-1]) if found else 0
