# SPDX-License-Identifier: GPL-2.0-only
"""The demo ends with a diagnosis, and leaves nothing behind, whenever it is interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from machinery.harness import nobody
from machinery.harness.judged import judge
from machinery.testbed import ports
from machinery.testbed.turn import turn
from nsight_demo import demo
from nsight_demo.namespaces import NETNS_DIR, PREFIX, RUN_DIR

from conftest import skip_or_fail

pytestmark = pytest.mark.live

TOOL = Path(__file__).resolve().parents[2] / "tools/nsight-demo"

# Stand-ins: one that finishes its recording at once, and one for either tool that runs until somebody ends it.
FAKE_RECORD = '#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\nmkdir -p "$2"\n'
FAKE_ENDLESS = "#!/bin/sh\nexec sleep 600\n"


def left_by(pid: int) -> list[str]:
    """What testbeds of a process, which may have ended, have left; other runs have their own."""
    directories = (NETNS_DIR, RUN_DIR)
    return [str(p) for f in directories if f.is_dir() for p in f.glob(f"{PREFIX}-{pid}-*")]


def own_processes(variable: str) -> list[str]:
    """Processes with this variable in their environment: everything the demo started inherits it."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if variable.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


class Demo:
    """A demo in its own session with fake or real tools, on a reserved port; ``lines`` collects its stderr."""

    def __init__(self, tmp_path: Path, port: int, fake: bool, record: str = FAKE_RECORD) -> None:
        self.mark = f"NSIGHT_DEMO_TEST={tmp_path}"
        code = f"import sys; sys.path.insert(0, {str(TOOL)!r}); from nsight_demo import demo; from pathlib import Path\n"
        if fake:
            for name, text in (("RECORD", record), ("REPORT", FAKE_ENDLESS)):
                path = tmp_path / name
                path.write_text(text)
                path.chmod(0o755)
                code += f"demo.{name} = Path({str(path)!r})\n"
        code += "sys.exit(demo.main())"
        self.lines: list[str] = []
        self.child = subprocess.Popen(
            [sys.executable, "-c", code, "-d", "2", "-o", str(tmp_path / "out"), "--port", str(port)],
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
        """Wait until the progress line of ``step`` is printed."""
        deadline = time.monotonic() + 300
        while not any(line.startswith(f"[{step}/") for line in list(self.lines)):
            if self.child.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"no step {step}:\n{''.join(self.lines)}")
            time.sleep(0.01)

    def finish(self) -> tuple[int, str, str]:
        """Wait for the end; exit code, stdout, stderr."""
        assert self.child.stdout
        out = self.child.stdout.read()
        code = self.child.wait(300)
        self._reader.join()  # the demo has ended, and no other process holds its stderr
        return code, out, "".join(self.lines)


@pytest.fixture
def port() -> Iterator[int]:
    """A port that no other memcached uses."""
    if os.geteuid():
        skip_or_fail("root", "the demo makes network namespaces")
    with ports.reserved() as (number,):
        yield number


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("delay_ms", [0, 300])
def test_interrupted_demo_leaves_nothing_running(
    needs: Callable[..., None], tmp_path: Path, port: int, step: int, delay_ms: int
) -> None:
    """The interrupt may come at any time; the demo would stay in its second or third step for ten minutes."""
    needs(*demo.PROGRAMS)
    run = Demo(tmp_path, port, fake=True, record=FAKE_RECORD if step == 3 else FAKE_ENDLESS)
    run.wait_for_step(step)
    time.sleep(delay_ms / 1000)
    run.child.send_signal(signal.SIGINT)
    code, _, err = run.finish()
    assert code == 130
    assert "interrupted; nothing was left running" in err
    assert "Traceback" not in err
    assert left_by(run.child.pid) == []
    assert own_processes(run.mark) == []


@pytest.mark.alone
def test_demo_names_the_hog_and_ends_with_the_report(
    needs: Callable[..., None], tmp_path: Path, port: int
) -> None:
    needs(*demo.PROGRAMS, "bpftrace", "perf")
    with turn():
        run = Demo(tmp_path, port, fake=False)
        code, out, err = run.finish()
    assert code == 0, err
    assert [line[1:4] for line in err.splitlines() if line.startswith("[")] == ["1/4", "2/4", "3/4", "4/4"]
    assert "hog burned memcached's core for 8 ms of every 20 ms" in out
    assert "<html" in (tmp_path / "out" / "report" / "report.html").read_text()
    assert out.rstrip().endswith(f"Capture: {tmp_path / 'out' / 'demo.nsight'}")
    assert left_by(run.child.pid) == []
    assert own_processes(run.mark) == []
    causes = out.partition("Causes of the slow messages")[2].splitlines()[:4]
    first = causes[2].split() if len(causes) > 2 else []
    judge("live", "the demo names the hog", first[:2] == ["hog", "(A)"], " ".join(first) or "no cause")


def test_failed_recording_fails_the_demo(needs: Callable[..., None], tmp_path: Path, port: int) -> None:
    needs(*demo.PROGRAMS)
    code, out, err = Demo(tmp_path, port, fake=True, record="#!/bin/sh\nexit 5\n").finish()
    assert code == 1
    assert "[3/4" not in err and "Report:" not in out


@pytest.mark.parametrize("wrong", ["0", "65536", "memcached"])
def test_port_that_is_none_is_wrong_usage(wrong: str) -> None:
    script = TOOL / "nsight-demo"
    argv = [sys.executable, str(script), "--port", wrong]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "--port" in done.stderr


def test_demo_without_root_names_the_fix() -> None:
    if os.geteuid():
        pytest.skip("root: this test gives up root, so it must have it")
    script = TOOL / "nsight-demo"
    argv = [*nobody.command(), sys.executable, str(script)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    assert done.returncode == 4
    assert done.stderr.splitlines()[-1] == "hint: sudo make demo"
