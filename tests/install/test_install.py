# SPDX-License-Identifier: GPL-2.0-only
"""The results of ``make install`` and pip install work without a source tree: commands, man pages, completions, a report."""

from __future__ import annotations

import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import nsight_monitor
import nsight_record
import nsight_report
import pytest

from conftest import skip_or_fail

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
MANIFEST = Path(__file__).with_name("installed-files")
DECODER = (ROOT / "build/cargo/release/nsight-decode").exists()
PREFIX = "/opt/nsight"
#: Package directories by package: each installed package has the files that git has for it.
PACKAGES = {
    "nsight_report": "tools/nsight-report",
    "nsight_record": "tools/nsight-record",
    "nsight_monitor": "tools/nsight-monitor",
}
#: The place of each below lib/nsight, and a pattern for the files of all packages.
DIRECTORIES = {"nsight_report": "report", "nsight_record": "record", "nsight_monitor": "record"}
INSIDE = re.compile(r"lib/nsight/re\w+/nsight_(re|mon)")
#: The checkout becomes an empty directory, except for the interpreter with its PyPI packages and this test's files, which may be
#: inside it.
HIDE = """
mount -t tmpfs none /mnt && mkdir /mnt/venv /mnt/kept && mount --bind "$1/.venv" /mnt/venv && mount --bind "$2" /mnt/kept &&
mount -t tmpfs none "$1" && mkdir -p "$1/.venv" "$2" && mount --bind /mnt/venv "$1/.venv" && mount --bind /mnt/kept "$2" &&
cd / && shift 2 && exec "$@"
"""


def make(*words: str) -> None:
    made = subprocess.run(["make", "-s", "-C", ROOT, *words], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The prefix of an installation that uses numpy and similar packages from .venv."""
    place = tmp_path_factory.mktemp("installed")
    make(
        "install",
        f"DESTDIR={place}",
        f"prefix={PREFIX}",
        f"PYTHON={VENV}/bin/python",
        "WHEELS=no",
        "BYTECODE=no",
    )
    return place / PREFIX[1:]


def without_the_tree(place: Path, *argv: object) -> subprocess.CompletedProcess[str]:
    """Run a command that cannot open files of the checkout."""
    if os.geteuid():
        skip_or_fail("root", "only root can hide the checkout")
    words = ["unshare", "--mount", "sh", "-c", HIDE, "sh", ROOT, place.parent, *argv]
    environment = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": str(place)}
    return subprocess.run(
        [str(w) for w in words], capture_output=True, text=True, env=environment, timeout=300
    )


def in_git(*paths: str) -> list[str]:
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files", *paths], capture_output=True, text=True, check=True
    )
    return listed.stdout.splitlines()


def of_package(name: str) -> set[str]:
    """Files of an installed package, including the files that its links point to."""
    base = PACKAGES[name]
    found = set()
    for path in in_git(f"{base}/{name}"):
        links = sorted((ROOT / path).glob("*.bt")) if (ROOT / path).is_dir() else [None]
        found |= {str(Path(path).relative_to(base) / (link.name if link else "")) for link in links}
    return found if DECODER else found - {"nsight_report/bin/nsight-decode"}


def test_every_file_is_installed_and_no_other(installed: Path) -> None:
    """Packages have the files that git has; the rest is as in the list: links with their targets, programs with ``*``."""
    found = set()
    for path in (p for p in installed.rglob("*") if p.parent.name != "__pycache__"):
        name = str(path.relative_to(installed))
        if path.is_symlink():
            found.add(f"{name} -> {path.readlink()}")
        elif path.is_file():
            found.add(name + ("*" if path.stat().st_mode & 0o100 else ""))
    packages = {f"lib/nsight/{DIRECTORIES[name]}/{file}" for name in PACKAGES for file in of_package(name)}
    inside = {name.rstrip("*") for name in found if INSIDE.match(name)}
    assert inside == packages
    programs = {Path(name[:-1]).name for name in found if INSIDE.match(name) and name.endswith("*")}
    assert programs == {
        *(Path(name).name for name in packages if "/bin/" in name),
        *(path.name for path in (ROOT / "bpftrace").glob("*.bt")),
    }
    expected = set(MANIFEST.read_text().splitlines())
    if not DECODER:
        expected = {line for line in expected if not line.startswith("bin/nsight-decode")}
    assert {name for name in found if not INSIDE.match(name)} == expected


def commands() -> list[str]:
    names = [line.split()[0] for line in MANIFEST.read_text().splitlines() if line.startswith("bin/")]
    return [name.removeprefix("bin/") for name in names if not name.endswith(".bt")]


@pytest.mark.parametrize("name", commands())
def test_a_command_runs_and_has_a_man_page(installed: Path, tmp_path: Path, name: str) -> None:
    if name == "nsight-decode" and not DECODER:
        skip_or_fail("decoder", "nsight-decode is not built (hint: make decoder)")
    done = without_the_tree(tmp_path, installed / "bin" / name, "--help")
    assert done.returncode == 0, done.stderr
    assert "sage:" in done.stdout + done.stderr
    assert list(installed.glob(f"share/man/man*/{name}.[18]"))


def test_every_probe_script_has_a_man_page(installed: Path) -> None:
    scripts = [path.name for path in installed.glob("bin/*.bt")]
    assert len(scripts) == len(list((ROOT / "bpftrace").glob("*.bt")))
    assert not [name for name in scripts if not (installed / f"share/man/man8/{name}.8").exists()]


def recording(directory: Path) -> Path:
    """A committed perf.data with message events: kernel-patches/net in a guest."""
    data = directory / "guest.data"
    data.write_bytes(lzma.decompress((ROOT / "tests/report/perf_import/data/guest.data.xz").read_bytes()))
    return data


def test_the_installed_report_explains_a_recording(installed: Path, tmp_path: Path) -> None:
    """Its native programs, its tables, its page: if one of them lacked a file, that file would be in the checkout."""
    data = recording(tmp_path)
    report = installed / "bin/nsight-report"
    done = without_the_tree(tmp_path, report, "import", data)
    assert done.returncode == 0, done.stderr
    done = without_the_tree(tmp_path, report, tmp_path / "guest.nsight", "--json", "-o", tmp_path / "page")
    assert done.returncode == 0, done.stderr
    again = subprocess.run(
        [
            ROOT / "tools/nsight-report/nsight-report",
            tmp_path / "guest.nsight",
            "--json",
            "--rerun",
            "clocks",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == json.loads(again.stdout)
    assert (tmp_path / "page/report.html").stat().st_size > 100_000
    assert json.loads((tmp_path / "guest.nsight/manifest.json").read_text())["syscall_names"]["0"] == "read"


def test_the_installed_recorder_finds_its_programs(installed: Path, tmp_path: Path) -> None:
    said = without_the_tree(tmp_path, installed / "bin/nsight-record", "--preflight").stdout
    assert "is not built" not in said
    assert "ready to record" in said or "error" in said


def test_perf_runs_the_installed_script(installed: Path, tmp_path: Path) -> None:
    """perf's interpreter finds the script's modules; the only error is about the recording, which has no Intel PT."""
    if not shutil.which("perf"):
        skip_or_fail("perf", "perf is not installed")
    data = ROOT / "tests/report/capture/data/loopback.data"
    copy = shutil.copy(data, tmp_path)
    for script in ("nsight.py", "scripts/python/nsight.py"):
        done = without_the_tree(
            tmp_path, "perf", "script", "-i", copy, "-s", installed / "lib/nsight/perf" / script
        )
        assert "nsight.py: error: " in done.stderr
        assert "Traceback" not in done.stderr


def test_bash_completes_commands_options_and_captures(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "slow.nsight").mkdir()
    script = (
        'source "$1/share/bash-completion/completions/$2"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))\n'
        '_shtab_${1//-/_}; echo "${COMPREPLY[*]}"'
    )

    def completed(*words: str) -> list[str]:
        argv = ["bash", "-c", script, "bash", str(installed), *words]
        return subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path, check=True).stdout.split()

    assert completed("nsight-report", "s") == ["slow.nsight", "show"]
    assert completed("nsight-report", "--decode", "") == ["all", "chosen"]
    assert completed("nsight-report", "show", "--sym") == ["--symfs"]
    assert completed("nsight-record", "--mode", "") == ["auto", "intel-pt", "tracepoints"]
    assert completed("nsight-monitor", "--receive-stamps", "") == ["auto", "on", "off"]


def test_uninstall_leaves_nothing(tmp_path: Path) -> None:
    where = (f"DESTDIR={tmp_path}", f"prefix={PREFIX}")
    make("install", *where, f"PYTHON={VENV}/bin/python", "WHEELS=no", "BYTECODE=no")
    other = tmp_path / PREFIX[1:] / "bin/of-another"
    other.touch()
    make("uninstall", *where)
    assert [path for path in tmp_path.rglob("*") if not path.is_dir()] == [other]


@pytest.mark.parametrize("name", PACKAGES)
def test_the_wheel_has_every_file_of_its_package(tmp_path: Path, name: str) -> None:
    """Built in a copy, because setuptools leaves files beside its results."""
    base = tmp_path / "tree"
    shutil.copytree(
        ROOT / "tools", base / "tools", symlinks=True, ignore=shutil.ignore_patterns("nsight-decode")
    )
    shutil.copytree(ROOT / "bpftrace", base / "bpftrace")
    shutil.copytree(ROOT / "perf-scripts", base / "perf-scripts", symlinks=True)
    argv = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path]
    made = subprocess.run([*argv, base / PACKAGES[name]], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        modes = {
            i.filename: i.external_attr >> 16 for i in archive.infolist() if ".dist-info/" not in i.filename
        }
        points = archive.read(f"{name}-0.1.0.dist-info/entry_points.txt").decode()
    assert set(modes) == of_package(name) - {"nsight_report/bin/nsight-decode"}
    assert not [file for file, mode in modes.items() if "/bin/" in file and not mode & 0o111]
    assert f"{name.replace('_', '-')} = {name}.cli:main" in points
    assert re.fullmatch(rf"{name}-0\.1\.0-py3-none-linux_\w+\.whl", wheel.name)


def test_every_part_has_the_same_version() -> None:
    decoder = re.search(r'^version = "(.*)"', (ROOT / "tools/nsight-decode/Cargo.toml").read_text(), re.M)
    assert decoder
    assert decoder[1] == nsight_report.__version__ == nsight_record.__version__ == nsight_monitor.__version__


def test_nothing_that_is_shipped_changes_where_python_looks() -> None:
    shipped = [ROOT / path for path in in_git("tools", "perf-scripts", "bpftrace")]
    texts = {path: path.read_bytes() for path in shipped if path.is_file()}
    assert not [str(path) for path, text in texts.items() if b"sys.path" in text]
