# SPDX-License-Identifier: GPL-2.0-only
"""Stock Debian kernels for the guest: downloaded by package name, unpacked, never installed.

The mirror is the one this machine's apt is configured with. ``kernels.lock`` pins the versions;
Debian's archive keeps a version only until the next, and then the newest is taken, with a
warning. Everything lands in ``build/guest/`` and is reused; deleting that folder is always safe.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import lzma
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
BUILD = TOP / "build" / "guest"

#: What a user may ask for: kernel series, and the Debian suite that ships it.
SUITES = {"6.1": "bookworm", "6.12": "trixie"}

LOCK = Path(__file__).resolve().parent / "kernels.lock"

#: Modules the initramfs needs before the host's tree is the root file system.
BOOT_MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay")


class GuestError(Exception):
    """The guest cannot be prepared or run; the message says what to do."""


@dataclass(frozen=True)
class Kernel:
    """One unpacked kernel: its release string, image, and modules folder."""

    release: str
    image: Path
    modules: Path


@dataclass(frozen=True)
class Pin:
    """One line of kernels.lock."""

    package: str
    version: str
    sha256: str


def pinned(series: str, lock: Path = LOCK) -> Pin:
    """The version of ``series`` that was chosen for tests."""
    for line in lock.read_text().splitlines():
        words = line.split()
        if words and words[0] == series and len(words) == 4:
            return Pin(*words[1:])
    raise GuestError(f"{lock.name} has no kernel {series} (hint: add a line like the others)")


def need(program: str, package: str) -> str:
    """Path of ``program``; GuestError names the package that has it."""
    path = shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")
    if path is None:
        raise GuestError(f"{program} is not installed (hint: apt-get install {package})")
    return path


def mirror() -> str:
    """Base address of the Debian archive that apt on this machine uses."""
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


def _apt(suite: str, work: Path) -> list[str]:
    """Options that make apt use only ``suite``, with its state below ``work``."""
    keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
    for sub in ("lists/partial", "cache/archives/partial", "etc/parts"):
        (work / sub).mkdir(parents=True, exist_ok=True)
    (work / "etc" / "sources.list").write_text(f"deb [signed-by={keyring}] {mirror()} {suite} main\n")
    (work / "status").touch()
    return [
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


def _image_package(options: list[str]) -> str:
    """Name of the kernel package behind the suite's linux-image-amd64 metapackage."""
    out = subprocess.run(
        ["apt-cache", *options, "depends", "linux-image-amd64"], capture_output=True, text=True, check=False
    ).stdout
    for line in out.splitlines():
        word, _, name = line.strip().partition(": ")
        if word == "Depends" and name.startswith("linux-image-"):
            return name
    raise GuestError("the archive has no linux-image-amd64 (hint: is the mirror reachable?)")


def fetch(series: str) -> Kernel:
    """Download and unpack the kernel of ``series`` unless that was done before."""
    tree = BUILD / series
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / f"{series}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two guests may be started at once
        pin, done = pinned(series), tree / "done"
        # What was asked for, not what came: an edited lock is followed, an old archive asked once.
        if not done.exists() or done.read_text() != pin.sha256:
            _download(series, pin, tree)
            done.write_text(pin.sha256)
    release = next((tree / "lib/modules").iterdir()).name
    return Kernel(release, tree / "boot" / f"vmlinuz-{release}", tree / "lib/modules")


def _fetch_deb(pin: Pin, options: list[str], work: Path) -> Path:
    """The pinned package, or the newest if the archive no longer has that."""

    def download(name: str) -> bool:
        argv = ["apt-get", *options, "-q", "download", name]
        return subprocess.run(argv, cwd=work, capture_output=True).returncode == 0

    if download(f"{pin.package}={pin.version}"):
        (deb,) = work.glob("*.deb")
        found = hashlib.sha256(deb.read_bytes()).hexdigest()
        if found != pin.sha256:
            raise GuestError(f"{deb.name} has SHA-256 {found}, not that of {LOCK.name} (hint: correct it)")
        return deb
    newest = _image_package(options)
    print(
        f"guest: the archive no longer has {pin.package} {pin.version}; taking {newest}"
        f" (hint: pin that in tests/guest/{LOCK.name})",
        file=sys.stderr,
    )
    if not download(newest):
        raise GuestError(f"{newest} cannot be downloaded (hint: is the mirror reachable?)")
    (deb,) = work.glob("*.deb")
    return deb


def _download(series: str, pin: Pin, tree: Path) -> None:
    """Fill ``tree`` with the unpacked kernel package of ``series``."""
    shutil.rmtree(tree, ignore_errors=True)
    work = tree / "apt"
    options = _apt(SUITES[series], work)
    subprocess.run(["apt-get", *options, "-q", "update"], check=True, stdout=subprocess.DEVNULL)
    deb = _fetch_deb(pin, options, work)
    subprocess.run(["dpkg", "-x", str(deb), str(tree)], check=True)
    if (tree / "usr/lib/modules").exists():
        (tree / "lib").mkdir(exist_ok=True)
        (tree / "lib/modules").symlink_to("../usr/lib/modules")
    release = next((tree / "lib/modules").iterdir()).name
    subprocess.run([need("depmod", "kmod"), "-b", str(tree), release], check=True)
    shutil.rmtree(work)


def _load_order(kernel: Kernel) -> list[Path]:
    """Files of BOOT_MODULES and what they depend on, in the order they must be loaded."""
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
    root = Path(tempfile.mkdtemp(prefix="initramfs-", dir=BUILD))
    for sub in ("bin", "mod", "proc", "sys", "dev", "lower", "upper", "root"):
        (root / sub).mkdir(parents=True)
    shutil.copy2(need("busybox", "busybox-static"), root / "bin" / "busybox")
    for number, path in enumerate(_load_order(kernel)):
        (root / "mod" / f"{number:02d}-{path.name.split('.ko')[0]}.ko").write_bytes(_plain(path))
    for name, text in (("init", init), ("stage2", stage2)):
        (root / name).write_text(text)
        (root / name).chmod(0o755)
    names = b"\0".join(os.fsencode(p.relative_to(root)) for p in sorted(root.rglob("*")))
    cpio = subprocess.run(
        [need("busybox", "busybox-static"), "cpio", "-0", "-o", "-H", "newc"],
        cwd=root,
        input=names,
        capture_output=True,
        check=True,
    ).stdout
    shutil.rmtree(root)
    image = root.with_suffix(".gz")
    image.write_bytes(gzip.compress(cpio, 1))
    return image
