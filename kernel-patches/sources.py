# SPDX-License-Identifier: GPL-2.0-only
"""Pristine kernel sources of Debian, imported into git, with or without our series on top.

``bases.lock`` names package, version and checksum of each base. The import is one commit that depends only on
the files: everybody gets the same ID, and the patches name it as base-commit. Everything is put into
``build/kernel/`` (3 GB per base). It is reused without network access as long as the file ``done`` there
matches ``bases.lock``.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
TOP = HERE.parent
BUILD = TOP / "build" / "kernel"
sys.path.insert(0, str(TOP / "tests/machinery/guest"))
import kernels  # noqa: E402

#: In the order in which they are sent.
SERIES = ("timekeeping", "net-fix", "net")

#: Patches for the guest only, which give it hardware that it lacks; nobody sends them.
TEST_ONLY = "test-only"

#: Version of ``done`` and of the import next to it. Raise it when either is made differently: then everything
#: is fetched again.
FORMAT = 2

#: Author, committer and time of the import: constants, so that its ID depends only on the files.
IDENTITY = {
    "NAME": "Debian kernel source",
    "EMAIL": "debian-kernel@lists.debian.org",
    "DATE": "@0 +0000",
}


class PatchError(Exception):
    """Sources or patches are not as expected; the message says which ones, and what to do."""


@dataclass(frozen=True)
class Base:
    """One line of bases.lock, or a user's clone of a tree."""

    name: str
    suite: str
    package: str
    version: str
    sha256: str
    commit: str
    patches_of: str | None = None  # for a clone: the base whose series are tried on it
    clone: Path | None = None

    @property
    def newest(self) -> bool:
        """Whether its patches are the ones that are sent."""
        return (self.patches_of or self.name) == next(iter(bases()))

    @property
    def tree(self) -> Path:
        """The git work tree of the sources."""
        return BUILD / self.name / "src"

    @property
    def objects(self) -> Path:
        """Where make writes (``O=``)."""
        return BUILD / self.name / "obj"


def bases(lock: Path = HERE / "bases.lock") -> dict[str, Base]:
    """The bases by name, newest first."""
    lines = [line.split() for line in lock.read_text().splitlines() if line and line[0] != "#"]
    return {words[0]: Base(*words) for words in lines}


def of_tree(clone: Path) -> Base:
    """The newest series, on the commit that is checked out in ``clone``."""
    newest = next(iter(bases()))
    argv = ["git", "-C", str(clone), "rev-parse", "--show-toplevel", "HEAD"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode or not (clone / "MAINTAINERS").exists():
        raise PatchError(f"{clone}: no git clone of a kernel tree {done.stderr.strip()}".strip())
    top, commit = done.stdout.split()
    return Base("tree", "", "", f"commit {commit[:12]}", "", commit, newest, Path(top))


def patches(series: str, base: Base) -> list[Path]:
    """The patches of a series in order, without its cover letter."""
    found = sorted((HERE / series / (base.patches_of or base.name)).glob("0*.patch"))
    return [p for p in found if not p.name.startswith("0000-")]


def git(base: Base, *argv: str) -> str:
    """Run git in the sources of ``base`` and return what it prints."""
    done = subprocess.run(["git", "-C", str(base.tree), *argv], capture_output=True, text=True, check=False)
    if done.returncode:
        raise PatchError(f"{base.name}: git {argv[0]}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


@contextmanager
def locked(base: Base) -> Iterator[None]:
    """Prevents others from changing the sources of ``base`` in the meantime."""
    folder = BUILD / base.name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fetch(base: Base) -> None:
    """Download, unpack and import the sources of ``base`` unless that was done before; or share a clone's
    sources."""
    if base.clone:
        _share(base)
        return
    done = BUILD / base.name / "done"
    fields = {k: getattr(base, k) for k in ("package", "version", "sha256", "commit")}
    # Only this package is ever unpacked here, so the result is the requested one.
    wanted = json.dumps({"format": FORMAT, **fields}) + "\n"
    if done.exists() and done.read_text() == wanted:
        return
    done.unlink(missing_ok=True)  # first: it describes what is about to be removed
    shutil.rmtree(base.tree, ignore_errors=True)
    print(f"{base.name}: downloading {base.package} {base.version}, unpacking, importing", flush=True)
    deb = _download(base)
    base.tree.mkdir(parents=True)
    data = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(deb)], stdout=subprocess.PIPE)
    member = f"./usr/src/{base.package}.tar.xz"
    packed = subprocess.Popen(["tar", "-xO", member], stdin=data.stdout, stdout=subprocess.PIPE)
    subprocess.run(
        ["tar", "-xJ", "--strip-components=1", "-C", str(base.tree)], stdin=packed.stdout, check=True
    )
    if packed.wait() or data.wait():
        raise PatchError(f"{deb.name} has no {member}")
    deb.unlink()
    found = _import(base)
    if found != base.commit:
        raise PatchError(f"{base.name}: the import is commit {found}, bases.lock says {base.commit}")
    done.write_text(wanted)


def _share(base: Base) -> None:
    """A work tree of the clone's commit; it leaves the clone alone and needs little space besides the files."""
    if not (base.tree / ".git").exists():
        base.tree.parent.mkdir(parents=True, exist_ok=True)
        argv = ["git", "clone", "-q", "-n", "--shared", str(base.clone), str(base.tree)]
        subprocess.run(argv, check=True)
    else:
        git(base, "remote", "set-url", "origin", str(base.clone))
        git(base, "fetch", "-q", "origin", base.commit)
    git(base, "checkout", "-q", "-f", "-B", "pristine", base.commit)


def _download(base: Base) -> Path:
    """The source package, checked against bases.lock."""
    work = BUILD / base.name / "apt"
    options = kernels.archive(base.suite, work)
    package = kernels.Package(base.package, base.version, base.sha256)
    if not any(p.version == base.version for p in kernels.versions(options, base.package)):
        raise PatchError(
            f"the archive has no {package} in {base.suite} any more"
            " (hint: name the newest in bases.lock, rebase the series onto it; README.md says how)"
        )
    deb = kernels.download(options, package, work)
    found = kernels.sha256(deb)
    if found != base.sha256:
        raise PatchError(f"{deb.name} has SHA-256 {found}, not that of bases.lock")
    return deb


def _import(base: Base) -> str:
    """Commit the unpacked files; returns the ID."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    for who in ("AUTHOR", "COMMITTER"):
        env.update({f"GIT_{who}_{k}": v for k, v in IDENTITY.items()})
    for argv in (
        ["init", "-q", "-b", "pristine"],
        ["config", "core.autocrlf", "false"],
        ["config", "core.attributesFile", "/dev/null"],
        ["config", "commit.gpgsign", "false"],
        ["config", "gc.auto", "0"],
        # 80,000 files: half of the time would go to zlib and fsync, for a repository that can be recreated.
        ["config", "core.looseCompression", "0"],
        ["config", "core.fsync", "none"],
        # Ignored files belong to the sources, too.
        ["add", "-A", "-f", "."],
        ["commit", "-q", "--no-verify", "-m", base.package],
    ):
        subprocess.run(["git", "-C", str(base.tree), *argv], env=env, check=True)
    return git(base, "rev-parse", "HEAD").strip()


def reset(base: Base, branch: str) -> None:
    """A clean work tree of the pristine sources on ``branch``, which is created again."""
    git(base, "am", "--abort") if (base.tree / ".git/rebase-apply").exists() else None
    git(base, "checkout", "-q", "-f", "-B", branch, "pristine")
    git(base, "clean", "-q", "-f", "-d", "-x")


def apply(base: Base, patch: Path) -> None:
    """``git am`` one patch. No fuzz is tolerated, but on a clone the blobs that the patch names may be
    merged."""
    argv = ["-c", "user.name=check", "-c", "user.email=check@localhost", "am", "-q", "--keep-cr"]
    git(base, *argv, *(["-3"] if base.clone else []), str(patch))


@dataclass(frozen=True)
class Make:
    """The kernel's make with ccache, outside the source tree, with ``options`` in each call."""

    base: Base
    objects: Path
    options: tuple[str, ...]
    jobs: int = 1

    def run(self, *targets: str, log: Path | None = None) -> None:
        """PatchError with the end of the output if it fails, or if the compiler warns."""
        argv = ["make", "-s", f"-j{self.jobs}", "-C", str(self.base.tree), f"O={self.objects}", *self.options]
        env = dict(
            os.environ,
            CCACHE_DIR=str(BUILD / "ccache"),
            KBUILD_BUILD_TIMESTAMP="@0",
            KBUILD_BUILD_USER="nsight",
            KBUILD_BUILD_HOST="nsight",
        )
        done = subprocess.run([*argv, *targets], env=env, capture_output=True, text=True, check=False)
        if log:
            log.write_text(done.stdout + done.stderr)
        said = f"{self.base.name}: make {' '.join(targets)}"
        if done.returncode:
            tail = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
            raise PatchError(f"{said} failed\n{tail}")
        # kconfig warns about choices that the fragment changes; only the compiler's warnings count.
        if re.search(r"\.[chS]:\d+(:\d+)?: warning:", done.stderr):
            raise PatchError(f"{said} warns\n{done.stderr}")


def make(base: Base, *targets: str, jobs: int = 1, log: Path | None = None) -> None:
    """Make ``targets`` in the objects' folder of ``base``."""
    ccache = shutil.which("ccache")
    compiler = f"CC={ccache + ' ' if ccache else ''}gcc"
    Make(base, base.objects, (compiler,), jobs).run(*targets, log=log)


def fragments(base: Base) -> list[Path]:
    """Files of the guest's configuration."""
    names = ("guest.config", f"guest-{base.patches_of or base.name}.config")
    return [HERE / name for name in names if (HERE / name).exists()]


def configure(base: Base) -> None:
    """The configuration from guest.config for ``base``; runs make only if it has changed."""
    parts = fragments(base)
    want = "".join(p.read_text() for p in parts)
    made = base.objects / "made-from"
    if (base.objects / ".config").exists() and made.exists() and made.read_text() == want:
        return
    base.objects.mkdir(parents=True, exist_ok=True)
    make(base, "tinyconfig")
    merge = ["scripts/kconfig/merge_config.sh", "-m", "-O", str(base.objects), str(base.objects / ".config")]
    subprocess.run([*merge, *map(str, parts)], cwd=base.tree, check=True, capture_output=True)
    make(base, "olddefconfig")
    have = set((base.objects / ".config").read_text().splitlines())
    missing = [line for line in want.splitlines() if line.startswith("CONFIG_") and line not in have]
    if missing:
        raise PatchError(f"{base.name}: the configuration lacks {' '.join(missing)}")
    made.write_text(want)
