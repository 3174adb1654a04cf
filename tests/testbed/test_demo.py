# SPDX-License-Identifier: GPL-2.0-only
"""The demo: ends with a diagnosis, and leaves nothing behind whenever it is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from testbed import demo

pytestmark = pytest.mark.alone

TESTS = Path(__file__).resolve().parent.parent

# Stand-ins that only take time, so that every step can be interrupted quickly.
FAKE_RECORD = '#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\nmkdir -p "$2"\nsleep 1\n'
FAKE_REPORT = "#!/bin/sh\nsleep 1\necho fake diagnosis\n"


def all_testbeds() -> set[str]:
    folders = (Path("/run/netns"), Path("/run/nsight-testbed"))
    return {str(p) for f in folders if f.is_dir() for p in f.iterdir() if "nsight-tb" in p.name}


def own_processes(session_of: str) -> list[str]:
    """Processes with this word in their environment: everything the demo started inherits it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if session_of.encode() in (entry / "environ").read_bytes() and int(entry.name) != os.getpid():
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


class Demo:
    """A demo in its own session with fake or real tools; ``lines`` collects its stderr."""

    def __init__(self, tmp_path: Path, fake: bool, record: str = FAKE_RECORD) -> None:
        self.mark = f"NSIGHT_DEMO_TEST={tmp_path}"
        code = f"import sys; sys.path.insert(0, {str(TESTS)!r}); from testbed import demo; from pathlib import Path\n"
        if fake:
            for name, text in (("RECORD", record), ("REPORT", FAKE_REPORT)):
                path = tmp_path / name
                path.write_text(text)
                path.chmod(0o755)
                code += f"demo.{name} = Path({str(path)!r})\n"
        code += "sys.exit(demo.main())"
        self.lines: list[str] = []
        self.child = subprocess.Popen(
            [sys.executable, "-c", code, "-d", "2", "-o", str(tmp_path / "out")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "NSIGHT_DEMO_TEST": str(tmp_path)},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.child.stderr
        self.lines.extend(iter(self.child.stderr.readline, ""))

    def wait_for_step(self, step: int) -> None:
        """Until the progress line of ``step`` was printed."""
        deadline = time.monotonic() + 60
        while not any(line.startswith(f"[{step}/") for line in list(self.lines)):
            assert self.child.poll() is None and time.monotonic() < deadline, self.lines
            time.sleep(0.01)

    def finish(self) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        assert self.child.stdout
        out = self.child.stdout.read()
        code = self.child.wait(60)
        self._reader.join(5)
        return code, out, "".join(self.lines)


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("delay_ms", [0, 300])
def test_interrupted_demo_leaves_nothing_running(
    needs: Callable[..., None], tmp_path: Path, step: int, delay_ms: int
) -> None:
    needs(*demo.PROGRAMS)
    before = all_testbeds()
    run = Demo(tmp_path, fake=True)
    run.wait_for_step(step)
    time.sleep(delay_ms / 1000)
    run.child.send_signal(signal.SIGINT)
    code, _, err = run.finish()
    assert code == 130
    assert "interrupted; nothing was left running" in err
    assert "Traceback" not in err
    assert all_testbeds() <= before
    assert own_processes(run.mark) == []


@pytest.mark.live
def test_demo_names_the_hog_and_ends_with_the_report(needs: Callable[..., None], tmp_path: Path) -> None:
    needs(*demo.PROGRAMS, "bpftrace", "perf")
    before = all_testbeds()
    code, out, err = Demo(tmp_path, fake=False).finish()
    assert code == 0, err
    assert [line[1:4] for line in err.splitlines() if line.startswith("[")] == ["1/4", "2/4", "3/4", "4/4"]
    causes = out[out.index("Causes of the slow messages") :].splitlines()
    assert causes[2].split()[:2] == ["hog", "(A)"]
    assert "hog burned memcached's core for 8 ms of every 20 ms" in out
    assert "<html" in (tmp_path / "out" / "report" / "report.html").read_text()
    assert out.rstrip().endswith(f"Capture: {tmp_path / 'out' / 'demo.nsight'}")
    assert all_testbeds() <= before


def test_failed_recording_fails_the_demo(needs: Callable[..., None], tmp_path: Path) -> None:
    needs(*demo.PROGRAMS)
    code, out, err = Demo(tmp_path, fake=True, record="#!/bin/sh\nexit 5\n").finish()
    assert code == 1
    assert "[3/4" not in err and "Report:" not in out


def test_demo_without_root_names_the_cure() -> None:
    if os.geteuid():
        pytest.skip("root: this test gives up root, so it must have it")
    script = TESTS / "testbed" / "demo.py"
    argv = ["setpriv", "--reuid", "nobody", "--clear-groups", sys.executable, str(script)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 4
    assert done.stderr.splitlines()[-1] == "hint: sudo make demo"
