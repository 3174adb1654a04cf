# SPDX-License-Identifier: GPL-2.0-only
"""A fake Debian archive for tests: it imitates apt-get, apt-cache, dpkg and depmod for a given set of packages."""

from __future__ import annotations

import hashlib
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kernels
import pytest

_run = subprocess.run


def package(name: str, version: str) -> kernels.Package:
    """A package whose file contains only its name and version."""
    return kernels.Package(name, version, hashlib.sha256(f"{name} {version}".encode()).hexdigest())


@dataclass
class FakeArchive:
    """``suites``: packages by suite, newest first; ``metas``: what a suite's metapackages depend on."""

    suites: dict[str, list[kernels.Package]] = field(default_factory=dict)
    metas: dict[tuple[str, str], str] = field(default_factory=dict)
    reachable: bool = True
    #: Packages that are in the lists but cannot be downloaded.
    missing: set[str] = field(default_factory=set)
    #: The commands that were run and need the network.
    asked: list[str] = field(default_factory=list)

    def run(self, argv: list[str], **options: Any) -> subprocess.CompletedProcess[Any]:
        """Replaces subprocess.run."""
        argv = [str(word) for word in argv]
        if "--" in argv and argv[1].endswith("tools/downloads"):
            argv = argv[argv.index("--") + 1 :]
        program, last = Path(argv[0]).name, argv[-1]
        if program == "git":
            return _run(argv, **options)
        said, status = "", 0
        if program == "dpkg":
            # The package's name serves as the release.
            (Path(last) / "lib/modules" / Path(argv[-2]).name.split("=")[0]).mkdir(parents=True)
        elif program.startswith("apt-"):
            said, status = self._apt(argv, options)
        return subprocess.CompletedProcess(argv, status, said, "E: fake" if status else "")

    def _apt(self, argv: list[str], options: dict[str, Any]) -> tuple[str, int]:
        suite = next(
            Path(w.partition("=")[2]).read_text().split()[-2] for w in argv if "Etc::sourcelist=" in w
        )
        lists = next(Path(w.partition("=")[2]) for w in argv if "State::lists=" in w) / "lists"
        last = argv[-1]
        if "update" in argv:
            self.asked.append(f"update {suite}")
            if self.reachable:
                lists.touch()
            return "", 0 if self.reachable or "--error-on=any" not in argv else 100
        known = self.suites.get(suite, []) if lists.exists() else []
        if "depends" in argv:
            name = self.metas.get((suite, last))
            return (f"{last}\n  Depends: {name}\n" if known and name else ""), 0
        if "show" in argv:
            found = [p for p in known if p.name == last]
            text = "\n".join(
                f"Package: {p.name}\nVersion: {p.version}\nSHA256: {p.sha256}\nDescription: a kernel\n more: of it\n"
                for p in found
            )
            return text, 0 if found else 100
        assert "download" in argv, argv
        self.asked.append(f"download {last}")
        if not any(f"{p.name}={p.version}" == last for p in known) or last in self.missing:
            return "", 100
        (Path(options["cwd"]) / f"{last}.deb").write_text(last.replace("=", " "))
        return "", 0


@pytest.fixture
def archive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeArchive:
    """The archive with a pinned kernel 6.1 in suite bookworm; downloads go to ``tmp_path``."""
    fake = FakeArchive()
    pin = package("linux-image-6.1.0-1-amd64", "6.1.1-1")
    fake.suites["bookworm"] = [pin]
    fake.metas["bookworm", "linux-image-amd64"] = pin.name
    monkeypatch.setattr(kernels.subprocess, "run", fake.run)
    monkeypatch.setattr(kernels, "mirror", lambda: "http://archive.invalid/debian")
    monkeypatch.setattr(kernels, "need", lambda program, _: program)
    monkeypatch.setattr(kernels, "BUILD", tmp_path / "build")
    monkeypatch.setattr(kernels, "LOCK", tmp_path / "kernels.lock")
    write_lock(pin)
    return fake


def write_lock(pin: kernels.Package, series: str = "6.1") -> None:
    """kernels.lock with only this pin."""
    kernels.LOCK.write_text(f"# comment\n{series} {pin.name} {pin.version} {pin.sha256}\n")
