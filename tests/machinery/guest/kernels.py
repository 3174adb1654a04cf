# SPDX-License-Identifier: GPL-2.0-only
"""Stock Debian kernels for the guest: downloaded by package name, unpacked, never installed.

The mirror is the one that apt on this machine uses. ``kernels.lock`` pins the versions. Debian's
archive keeps a version only until the next one; then the newest is used, with a warning.
Everything is stored in ``build/guest/`` and is reused without network. The file ``done`` there
records the requested pin and the package that was downloaded. That directory can always be
deleted safely.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[3]
BUILD = TOP / "build" / "guest"

#: What a user may request: kernel series, and the Debian suite that ships it.
SUITES = {"6.1": "bookworm", "6.12": "trixie", "newest": "trixie-backports"}

LOCK = Path(__file__).resolve().parent / "kernels.lock"

#: Format of ``done`` and of the tree beside it. Raise it when either changes: then all kernels are fetched again.
FORMAT = 2

#: Modules the initramfs needs before the host's tree is the root file system.
BOOT_MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")


class GuestError(Exception):
    """The guest cannot be prepared or run; the message says what to do."""


@dataclass(frozen=True)
class Kernel:
    """One kernel: its release string, image, modules directory, and whether it is the package of kernels.lock."""

    release: str
    image: Path
    modules: Path
    pinned: bool = False


@dataclass(frozen=True)
class Package:
    """A version of a package and the SHA-256 of its .deb: as pinned in kernels.lock, or as in the archive."""

    name: str
    version: str
    sha256: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def pinned(series: str, lock: Path | None = None) -> Package:
    """The version of ``series`` that was chosen for tests."""
    lock = lock or LOCK
    for line in lock.read_text().splitlines():
        words = line.split()
        if words and words[0] == series and len(words) == 4:
            return Package(*words[1:])
    raise GuestError(f"{lock.name} has no kernel {series} (hint: add a line like the others)")


def need(program: str, package: str) -> str:
    """Path of ``program``. GuestError names the package that contains it."""
    path = shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")
    if path is None:
        raise GuestError(f"{program} is not installed (hint: apt-get install {package})")
    return path


def mirror() -> str:
    """Base URL of the Debian archive that apt on this machine uses."""
    out = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", "Origin: Debian"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    for uri in out:
        if "security" not in uri:
            return uri.rstrip("/")
    raise GuestError("apt has no Debian archive configured (hint: apt-get update)")


def measured(what: str, argv: list[str]) -> list[str]:
    """``argv``, wrapped by tools/downloads, which records its downloads under the name ``what``."""
    return [sys.executable, str(TOP / "tools" / "downloads"), what, "--", *argv]


def _cause(done: subprocess.CompletedProcess[str]) -> str:
    """The first error line of a failed apt-get; the later lines are only a summary."""
    return (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[0]


def archive(suite: str, work: Path) -> list[str]:
    """Options that make apt use only ``suite``, with its state below ``work``; the package lists are fetched."""
    keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
    for sub in ("lists/partial", "cache/archives/partial", "etc/parts"):
        (work / sub).mkdir(parents=True, exist_ok=True)
    (work / "etc" / "sources.list").write_text(f"deb [signed-by={keyring}] {mirror()} {suite} main\n")
    (work / "status").touch()
    options = [
        "-o",
        f"Dir::Etc::sourcelist={work}/etc/sources.list",
        "-o",
        f"Dir::Etc::sourceparts={work}/etc/parts",
        "-o",
        f"Dir::Etc::preferencesparts={work}/etc/parts",
        "-o",
        f"Dir::State::lists={work}/lists",
        "-o",
        f"Dir::State::status={work}/status",
        "-o",
        f"Dir::Cache={work}/cache",
        "-o",
        "APT::Sandbox::User=root",
        "-o",
        "Acquire::Languages=none",
    ]
    # Without error-on=any, apt treats an unreachable archive as an empty one.
    argv = measured(f"package lists of {suite}", ["apt-get", *options, "-q", "update", "--error-on=any"])
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise GuestError(f"package lists of {suite}: {_cause(done)} (hint: is the mirror reachable?)")
    return options


def versions(options: list[str], name: str) -> list[Package]:
    """The archive's versions of package ``name``, newest first; empty if there are none."""
    argv = ["apt-cache", *options, "show", name]
    out = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    found = []
    for paragraph in out.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if re.match(r"[\w-]+: ", line))
        if fields.get("Package") == name:
            found.append(Package(name, fields["Version"], fields["SHA256"]))
    return found


def newest(options: list[str], meta: str) -> Package:
    """The package that the metapackage ``meta``, such as linux-image-amd64, depends on now."""
    argv = ["apt-cache", *options, "depends", meta]
    out = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    for line in out.splitlines():
        word, _, name = line.strip().partition(": ")
        # linux-source depends on linux-source-6.12, linux-image-amd64 on linux-image-6.12...-amd64.
        if word == "Depends" and re.match(r"linux-\w+-\d", name) and (found := versions(options, name)):
            return found[0]
    raise GuestError(f"the archive has no {meta} (hint: has the suite been renamed or archived?)")


def parts(options: list[str], package: Package) -> list[Package]:
    """From 7.x on, the packages that ``package`` is split into: the image, its modules, and lists of them. Empty before."""
    argv = ["apt-cache", *options, "depends", package.name]
    out = subprocess.run(argv, capture_output=True, text=True, check=False).stdout
    names = re.findall(r"Depends: (linux-(?:base|binary|modules)-\S+)", out)
    found = [p for name in names for p in versions(options, name) if p.version == package.version]
    if len(found) != len(names):
        raise GuestError(f"{package}: the archive lacks one of {', '.join(names)} (hint: make pins)")
    return found


def download(options: list[str], package: Package, work: Path) -> Path:
    """The file of ``package``, which the archive has; the only one in ``work``."""
    for old in work.glob("*.deb"):
        old.unlink()
    argv = ["apt-get", *options, "-q", "download", f"{package.name}={package.version}"]
    done = subprocess.run(measured(str(package), argv), cwd=work, capture_output=True, text=True, check=False)
    if done.returncode:
        raise GuestError(f"{package}: {_cause(done)} (hint: is the mirror reachable?)")
    (deb,) = work.glob("*.deb")
    return deb


def sha256(path: Path) -> str:
    """SHA-256 of a file of any size."""
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def fetch(series: str) -> Kernel:
    """Download and unpack the kernel of ``series``, unless it is already there."""
    tree = BUILD / series
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / f"{series}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two guests may be started at once
        pin, done = pinned(series), tree / "done"
        came = _unpacked(done, series, pin)
        if came is None:
            came = _download(series, pin, tree)
            done.write_text(json.dumps({**_asked(series, pin), "came": asdict(came)}) + "\n")
    if came != pin:
        print(
            f"guest: warning: {LOCK.name} names {pin}, which the archive dropped: {series} is {came}"
            f" (hint: make pins; rm -r build/guest/{series} asks the archive again)",
            file=sys.stderr,
        )
    release = next((tree / "lib/modules").iterdir()).name
    image = tree / "boot" / f"vmlinuz-{release}"
    if not image.exists():
        image = tree / "lib/modules" / release / "vmlinuz"
    return Kernel(release, image, tree / "lib/modules", came == pin)


def _asked(series: str, pin: Package) -> dict[str, Any]:
    """What ``done`` must contain besides the downloaded package."""
    return {"format": FORMAT, "series": series, "pin": asdict(pin)}


def _unpacked(done: Path, series: str, pin: Package) -> Package | None:
    """The package that was unpacked for ``pin``; None if the lock was edited since, or if the format differs."""
    try:
        said = json.loads(done.read_text())
        came = Package(**said.pop("came"))
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return None
    return came if said == _asked(series, pin) else None


def _fetch_deb(pin: Package, options: list[str], work: Path) -> tuple[Path, Package]:
    """The file of the pinned package, or of the newest one if the archive no longer has the pinned one; and which package it is."""
    has = any(p.version == pin.version for p in versions(options, pin.name))
    wanted = pin if has else newest(options, "linux-image-amd64")
    deb = download(options, wanted, work)
    came = replace(wanted, sha256=sha256(deb))
    if has and came != pin:
        raise GuestError(f"{deb.name} has SHA-256 {came.sha256}, not that of {LOCK.name} (hint: correct it)")
    return deb, came


def _download(series: str, pin: Package, tree: Path) -> Package:
    """Fill ``tree`` with the unpacked kernel package of ``series``; returns which it is."""
    work = BUILD / f"{series}.apt"
    shutil.rmtree(work, ignore_errors=True)
    options = archive(SUITES[series], work)
    deb, came = _fetch_deb(pin, options, work)
    debs = [deb]
    # apt checks them against the signed lists, and the pinned package names their version.
    for part in parts(options, came):
        (directory := work / part.name).mkdir()
        debs.append(download(options, part, directory))
    # Only now: until here the existing tree was still valid for its pin.
    shutil.rmtree(tree, ignore_errors=True)
    for one in debs:
        subprocess.run(["dpkg", "-x", str(one), str(tree)], check=True)
    if (tree / "usr/lib/modules").exists():
        (tree / "lib").mkdir(exist_ok=True)
        (tree / "lib/modules").symlink_to("../usr/lib/modules")
    release = next((tree / "lib/modules").iterdir()).name
    subprocess.run([need("depmod", "kmod"), "-b", str(tree), release], check=True)
    shutil.rmtree(work)
    return came


def _load_order(kernel: Kernel) -> list[Path]:
    """Files of BOOT_MODULES and their dependencies, in load order."""
    base = kernel.modules / kernel.release
    depends: dict[str, list[str]] = {}
    names: dict[str, str] = {}
    for line in (base / "modules.dep").read_text().splitlines():
        file, _, rest = line.partition(":")
        depends[file] = rest.split()
        names[file.rsplit("/", 1)[1].split(".ko")[0].replace("-", "_")] = file
    order: list[Path] = []
    for module in BOOT_MODULES:
        file = names.get(module)
        if file is None:
            continue  # built in
        # modules.dep lists dependencies nearest first; they load in the reverse order.
        for f in [*reversed(depends[file]), file]:
            if base / f not in order:
                order.append(base / f)
    return order


def _plain(path: Path) -> bytes:
    """A module's bytes, decompressed: busybox insmod takes plain files only."""
    data = path.read_bytes()
    if path.suffix == ".xz":
        return lzma.decompress(data)
    if path.suffix == ".gz":
        return gzip.decompress(data)
    return data


def initramfs(kernel: Kernel, init: str, stage2: str) -> Path:
    """Build the initramfs of ``kernel`` and return its file.

    It holds busybox, the boot modules, ``init`` as /init and ``stage2`` as /stage2.
    """
    busybox = need("busybox", "busybox-static")
    root = Path(tempfile.mkdtemp(prefix="initramfs-", dir=BUILD))
    for sub in ("bin", "mod", "proc", "sys", "dev", "lower", "upper", "root"):
        (root / sub).mkdir(parents=True)
    shutil.copy2(busybox, root / "bin" / "busybox")
    for number, path in enumerate(_load_order(kernel)):
        (root / "mod" / f"{number:02d}-{path.name.split('.ko')[0]}.ko").write_bytes(_plain(path))
    for name, text in (("init", init), ("stage2", stage2)):
        (root / name).write_text(text)
        (root / name).chmod(0o755)
    names = b"\0".join(os.fsencode(p.relative_to(root)) for p in sorted(root.rglob("*")))
    cpio = subprocess.run(
        [busybox, "cpio", "-0", "-o", "-H", "newc"],
        cwd=root,
        input=names,
        capture_output=True,
        check=True,
    ).stdout
    shutil.rmtree(root)
    image = root.with_suffix(".gz")
    image.write_bytes(gzip.compress(cpio, 1))
    return image
