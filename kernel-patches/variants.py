#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Compile what the series touch for other architectures, configurations and compilers, with all patches applied.

``variants.py [--tree DIR] [NAME...]``: the newest base, or the commit that is checked out in DIR; all
variants with an installed compiler, or only these. Objects only: nothing is linked or run. Then kernel-doc
checks the header, and Sphinx the pages of Documentation/, as in ``make htmldocs``.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import check
import form
import sources
from sources import Base, PatchError

NO_TRACEPOINTS = """
CONFIG_NET=y
CONFIG_UNIX=y
CONFIG_INET=y
CONFIG_IPV6=y
"""


@dataclass(frozen=True)
class Variant:
    """One way to compile. ``config``: fragment on top of ``target``; None: the guest's configuration."""

    name: str
    arch: str
    program: str
    options: tuple[str, ...] = ()
    target: str = "tinyconfig"
    config: str | None = None
    #: Lines that the configuration must not have.
    without: str = ""


VARIANTS = (
    Variant("i386", "i386", "gcc"),
    Variant("arm64", "arm64", "aarch64-linux-gnu-gcc"),
    Variant("s390", "s390", "s390x-linux-gnu-gcc"),
    Variant("no-tracepoints", "x86_64", "gcc", config=NO_TRACEPOINTS, without="CONFIG_TRACEPOINTS=y"),
    Variant("allmodconfig", "x86_64", "gcc", target="allmodconfig", config=""),
    # 7.2 requires clang 17 or later: this is the newest in Debian 12.
    Variant("clang", "x86_64", "clang-19"),
    Variant("sparse", "x86_64", "sparse", ("C=2", "CF=-Wsparse-error")),
)


def objects_of(base: Base) -> list[str]:
    """Objects that all series touch."""
    found: set[str] = set()
    for series in sources.SERIES:
        for patch in sources.patches(series, base):
            found |= set(check.objects(patch))
    return sorted(found)


def compile_variant(base: Base, variant: Variant, objects: list[str], jobs: int) -> None:
    """Configure and compile in a separate folder, which is deleted afterwards."""
    folder = sources.BUILD / base.name / f"variant-{variant.name}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    compiler = "gcc" if variant.program == "sparse" else variant.program
    if ccache := shutil.which("ccache"):
        compiler = f"{ccache} {compiler}"
    options = [f"ARCH={variant.arch}", f"CC={compiler}"]
    if variant.program.endswith("-gcc"):
        options.append(f"CROSS_COMPILE={variant.program.removesuffix('gcc')}")
    made = sources.Make(base, folder, tuple(options), jobs)
    try:
        made.run(variant.target)
        parts = sources.fragments(base)
        config = "".join(p.read_text() for p in parts) if variant.config is None else variant.config
        with (folder / ".config").open("a") as f:
            # Later lines win.
            f.write(config)
        made.run("olddefconfig")
        if variant.without and variant.without in (folder / ".config").read_text().splitlines():
            raise PatchError(f"{variant.name}: the configuration has {variant.without}")
        made.run("prepare")
        made.run(*variant.options, *objects)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def documents(base: Base) -> str:
    """Check kernel-doc of the series' headers, and their pages; returns what was checked."""
    touched = sorted(
        {f for s in sources.SERIES for p in sources.patches(s, base) for f in form.files(p) if "trace" in f}
    )
    headers = [f for f in touched if f.endswith(".h")]
    tool = next(p for p in ("scripts/kernel-doc.py", "scripts/kernel-doc") if (base.tree / p).exists())
    for header in headers:
        argv = ["/usr/bin/python3" if tool.endswith(".py") else "perl", tool, "-none", "-Wall", header]
        if not tool.endswith(".py"):
            argv = [f"./{tool}", *argv[2:]]
        done = subprocess.run(argv, cwd=base.tree, capture_output=True, text=True, check=False)
        ours = added_lines(base, header)
        for m in re.finditer(rf"{re.escape(header)}:(\d+).*", done.stderr):
            if int(m[1]) in ours:
                raise PatchError(f"kernel-doc: {m[0]}")
    pages = [f for f in touched if f.endswith(".rst") and not f.endswith("index.rst")]
    if not shutil.which("sphinx-build"):
        return f"kernel-doc of {len(headers)} headers; no sphinx-build for {len(pages)} pages"
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "source"
        source.mkdir()
        for page in pages:
            shutil.copy(base.tree / page, source)
        names = "\n".join(f"   {Path(p).stem}" for p in pages)
        (source / "index.rst").write_text(f"Pages\n=====\n\n.. toctree::\n\n{names}\n")
        (source / "conf.py").write_text("")
        argv = ["sphinx-build", "-q", "-W", "--keep-going", "-b", "html", str(source), f"{scratch}/html"]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            raise PatchError(f"sphinx-build: {done.stderr}")
    return f"kernel-doc of {len(headers)} headers, Sphinx of {len(pages)} pages"


def added_lines(base: Base, path: str) -> set[int]:
    """Numbers of the lines that the series add to ``path``."""
    out = sources.git(base, "diff", "-U0", "pristine", "HEAD", "--", path)
    found: set[int] = set()
    for m in re.finditer(r"^@@ .*? \+(\d+)(?:,(\d+))? @@", out, re.M):
        begin, count = int(m[1]), int(m[2] or 1)
        found |= set(range(begin, begin + count))
    return found


def run(base: Base, wanted: list[str], jobs: int) -> int:
    """Returns the number of variants that fail."""
    bad = 0
    with sources.locked(base):
        sources.fetch(base)
        sources.reset(base, "variants")
        for series in sources.SERIES:
            for patch in sources.patches(series, base):
                sources.apply(base, patch)
        objects = objects_of(base)
        for variant in VARIANTS:
            if wanted and variant.name not in wanted:
                continue
            if not shutil.which(variant.program):
                print(f"{base.name} {variant.name}: skipped: no {variant.program}", flush=True)
                continue
            begun = time.monotonic()
            try:
                compile_variant(base, variant, objects, jobs)
            except PatchError as e:
                print(f"variants: error: {variant.name}: {e}", file=sys.stderr)
                bad += 1
                continue
            took = time.monotonic() - begun
            print(f"{base.name} {variant.name}: {len(objects)} objects compile ({took:.0f} s)", flush=True)
        if not wanted or "documents" in wanted:
            print(f"{base.name} documents: {documents(base)}", flush=True)
    return bad


def main() -> int:
    """Entry point."""
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    p.add_argument("--tree", type=Path, metavar="DIR", help="the commit of this clone")
    p.add_argument("--jobs", type=int, default=2, metavar="N")
    p.add_argument("name", nargs="*", help="variants, or documents; default: all")
    options = p.parse_args()
    known = {v.name for v in VARIANTS} | {"documents"}
    if unknown := [n for n in options.name if n not in known]:
        p.error(f"no variant {unknown[0]} (hint: one of {' '.join(sorted(known))})")
    try:
        base = sources.of_tree(options.tree) if options.tree else next(iter(sources.bases().values()))
        return 1 if run(base, options.name, options.jobs) else 0
    except (PatchError, subprocess.CalledProcessError, sources.kernels.GuestError) as e:
        print(f"variants: error: {e}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
