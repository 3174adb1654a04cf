# SPDX-License-Identifier: GPL-2.0-only
"""nsight-capsule in the background, as users run it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from nsight_report import hops

from conftest import skip_or_fail

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools/nsight-capsule/nsight-capsule"
PROGRAM = ROOT / "tools/nsight-capsule/stamp/nsight-stamp"
HANGS_S = 120


class Stamping:
    """A running nsight-capsule, with all programs attached. ``end()`` returns the manifest."""

    def __init__(self, directory: Path, *options: str) -> None:
        if os.geteuid():
            skip_or_fail("root", "packets are stamped by root")
        if not PROGRAM.exists():
            skip_or_fail("bpf", "nsight-stamp is not built")
        self.directory = directory
        self.said: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, str(TOOL), *options, "-o", str(directory)], stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr
        for line in self.process.stderr:
            self.said.append(line)
            if line.startswith("stamping at "):
                return
        raise AssertionError("".join(self.said))

    def manifest(self) -> dict[str, Any]:
        made: dict[str, Any] = json.loads((self.directory / "manifest.json").read_text())
        return made

    def change(self, *options: str) -> None:
        subprocess.run([sys.executable, str(TOOL), "--change", str(self.directory), *options], check=True)

    def child(self) -> int:
        """The process id of nsight-stamp, the first child; others live for a moment, in another namespace."""
        pids = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(pids[0])

    def finish(self) -> int:
        """Wait for its end; the exit code."""
        _, err = self.process.communicate(timeout=HANGS_S)
        self.said += err.splitlines(keepends=True)
        return self.process.returncode

    def end(self) -> dict[str, Any]:
        self.process.send_signal(signal.SIGTERM)
        assert self.finish() == 130, self.said
        return self.manifest()

    def __enter__(self) -> Stamping:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def total(manifest: dict[str, Any], name: str) -> int:
    """The sum of a count over all points."""
    return sum(of.get(name, 0) for of in manifest["counted"]["counts"].values())


def skipped(manifest: dict[str, Any]) -> int:
    """Number of packets that were chosen but got no capsule."""
    names = {name for of in manifest["counted"]["counts"].values() for name in of if name.startswith("skip_")}
    return sum(total(manifest, name) for name in names)


def first_sent(directory: Path) -> int:
    """Number of collected packets, without retransmitted segments: a stalled machine sends some segments twice."""
    packets = hops.load(directory).packets
    return int((packets["arrived"] & ~packets["again"]).sum())
