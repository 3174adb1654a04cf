# SPDX-License-Identifier: GPL-2.0-only
"""When a capability is really taken away, exactly this one is reported as missing, before any test runs."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import skip_or_fail
from machinery.harness import capabilities, nobody
from machinery.harness.capabilities import ROOT

PLACES = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
#: A program whose absence takes the capability away.
PROGRAM = {
    "bpf": "bpftrace", "perf": "perf", "testbed": "memcached", "compiler": "gcc", "tcpdump": "tcpdump",
    "emulation": "cargo", "guest": "qemu-system-x86_64", "trixie": "debootstrap", "kernel-sources": "bison",
    "browser": "chromium", "trace_processor": "node", "ctags": "ctags", "groff": "groff",
}  # fmt: skip


def without(program: str) -> list[str]:
    """A command that runs another one without this program: in a mount namespace where an empty file hides the program."""
    if os.geteuid() != 0:
        skip_or_fail("root", "covering a program needs a mount namespace")
    places = [Path(p, program) for p in (*PLACES, *os.environ["PATH"].split(":"))]
    covered = " ".join(
        f"mount --bind /dev/null {shlex.quote(p)};" for p in {str(p.resolve()) for p in places if p.exists()}
    )
    return ["unshare", "-m", "sh", "-c", f'set -e; {covered} exec "$@"', "sh"]


def say(*prefix: str, required: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "NSIGHT_REQUIRE": required}
    argv = [*prefix, sys.executable, str(ROOT / "tests/machinery/harness/capabilities.py")]
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("name", PROGRAM)
def test_a_program_that_is_taken_away_fails_what_requires_it(name: str) -> None:
    if why := capabilities.BY_NAME[name].missing():
        skip_or_fail(name, why)
    assert say(required=name).returncode == 0
    done = say(*without(PROGRAM[name]), required=name)
    assert done.returncode == 1
    assert f"error: {name} (" in done.stderr
    assert f"not installed: {PROGRAM[name]}" in done.stderr
    assert "(hint: make" in done.stderr


def test_nobody_lacks_root_and_what_needs_it() -> None:
    if os.geteuid() != 0:
        skip_or_fail("root", "this test gives up root, so it must have it")
    # The system's interpreter: user nobody may have no access to that of the checkout.
    code = "import sys; sys.path.insert(0, sys.argv[1]); from machinery.harness import capabilities as c; sys.exit(c.main())"
    argv = [*nobody.command(), sys.executable, "-c", code, str(ROOT / "tests")]
    env = {**os.environ, "NSIGHT_REQUIRE": "root,bpf,testbed,perf"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    errors = [line.split()[1] for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert {"root", "bpf", "testbed"} <= set(errors)
    assert "perf" not in errors


def test_every_capability_that_is_missing_is_named_with_its_fix(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for c in capabilities.TABLE:
        gone = capabilities.Capability(c.name, c.about, lambda: "taken away", c.fix)
        monkeypatch.setattr(capabilities, "TABLE", (gone,))
        monkeypatch.setenv(capabilities.REQUIRE, c.name)
        assert capabilities.main() == 1
        assert capsys.readouterr().err == f"error: {c.name} ({c.about}): taken away (hint: {c.fix})\n"
        monkeypatch.setenv(capabilities.REQUIRE, "")
        assert capabilities.main() == 0
        assert capsys.readouterr().err.startswith(f"absent: {c.name} (")


def test_a_run_stops_before_its_first_test_when_something_required_is_missing() -> None:
    env = {**os.environ, "NSIGHT_REQUIRE": "groff"}
    argv = [*without("groff"), sys.executable, str(ROOT / "tests/run"), "--only", "queuing"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    assert "error: groff (man pages drawn): not installed: groff (hint: make deps-test)" in done.stderr
    assert "tests:" not in done.stdout


def test_ci_requires_everything() -> None:
    text = (ROOT / ".ci/run").read_text()
    assert "NSIGHT_REQUIRE=all" in text


def test_the_list_is_in_the_documentation() -> None:
    text = (ROOT / "Documentation/testing.md").read_text()
    for c in capabilities.TABLE:
        assert f"| `{c.name}` | {c.about} |" in text
