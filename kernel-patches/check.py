#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Check every series on every base: git am, form, documents, objects, selftests.

Each patch is applied to the pristine sources with only its predecessors, and what it touches is compiled (W=1
on the newest base) before the next one. ``check.py [--form] [BASE...]`` takes only these bases; ``--form``
compiles nothing. ``--tree DIR`` takes the newest series, and the commit that is checked out in DIR, a clone
of the maintainers' tree. The perf series has its own check, perf/check.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import form
import sources
from form import FormError, files
from sources import Base, PatchError

#: Objects into which a header is compiled, in addition to those of the patch's .c files.
HEADERS = {
    "include/trace/events/timekeeping.h": ["kernel/time/timekeeping.o"],
    "include/trace/events/sock.h": ["net/core/net-traces.o", "net/ipv4/af_inet.o"],
    "include/linux/clocksource_ids.h": ["kernel/time/timekeeping.o"],
}


def objects(patch: Path) -> list[str]:
    """Objects that a patch touches."""
    found: set[str] = set()
    for f in files(patch):
        if f.endswith(".c") and f.split("/")[0] in ("arch", "drivers", "kernel", "net"):
            found.add(f[:-1] + "o")
        found |= set(HEADERS.get(f, []))
    return sorted(found)


def compile_touched(base: Base, patch: Path) -> int:
    """Build the objects, selftests and documents that the patch touches; returns how many."""
    touched = files(patch)
    built = objects(patch)
    if built:
        # Files of old kernels already have warnings at W=1.
        extra = ["W=1"] if base.newest else []
        sources.make(base, *extra, *built)
    n = len(built)
    for f in touched:
        if f.startswith("tools/testing/selftests/") and f.endswith(".c"):
            selftest(base, f)
            n += 1
        if f.startswith("Documentation/") and f.endswith(".rst") and Path(f).name != "index.rst":
            rst = ["rst2html", "--report=2", "--halt=2", str(base.tree / f), "/dev/null"]
            done = subprocess.run(rst, capture_output=True, text=True, check=False)
            if done.returncode:
                raise PatchError(f"{f}: {done.stderr}")
            n += 1
    return n


def selftest(base: Base, source: str) -> Path:
    """Compile one selftest with its own folder's include path; returns the program."""
    program = sources.BUILD / base.name / Path(source).stem
    tests = base.tree / "tools/testing/selftests"
    argv = [
        "gcc",
        "-O2",
        "-Wall",
        "-Werror",
        "-D_GNU_SOURCE=",
        f"-I{tests}",
        "-o",
        str(program),
        str(base.tree / source),
    ]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PatchError(f"{source}: {done.stderr}")
    return program


def check_cover(base: Base, series: str) -> None:
    """A series of several patches has a cover letter. It, or the only patch, names the base."""
    found = sources.patches(series, base)
    letter = found[0].parent / "0000-cover-letter.patch"
    if len(found) == 1:
        letter = found[0]
    elif not letter.exists():
        raise PatchError(f"{series}: no cover letter")
    # For a user's tree, b4 or git format-patch --base adds the commit of that tree.
    if base.patches_of is None and f"base-commit: {base.commit}" not in letter.read_text():
        raise PatchError(f"{series}/{base.name}: {letter.name} does not name base-commit {base.commit}")


def check_series(base: Base, series: str, compiling: bool = True) -> None:
    """All checks of one series on one base."""
    begun = time.monotonic()
    check_cover(base, series)
    sources.reset(base, f"check-{series}")
    compiled = 0
    found = form.Form()
    todo = sources.patches(series, base)
    for patch in todo:
        sources.apply(base, patch)
        found.add(form.check(base.tree, patch))
        compiled += compile_touched(base, patch) if compiling else 0
    took = time.monotonic() - begun
    print(
        f"{base.name} {series}: {len(todo)} patches apply to {base.version}, {compiled} objects and programs compile,"
        f" {found.excused} complaints of checkpatch excused ({took:.0f} s)",
        flush=True,
    )
    if base.newest:
        for name, addresses in found.recipients.items():
            print(f"  {name}: to {' '.join(addresses)}")
    for note in found.notes:
        print(f"  to do: {note}", flush=True)


def check_test_only(base: Base, compiling: bool = True) -> None:
    """Check that the guest's patches apply and compile. Nobody sends them, so their form is not checked."""
    found = sources.patches(sources.TEST_ONLY, base)
    if not found:
        return
    begun = time.monotonic()
    sources.reset(base, "check-test-only")
    for patch in found:
        if "NOT FOR SUBMISSION" not in patch.read_text().split("\n\n")[0]:
            raise PatchError(f"{patch.name}: the subject does not say NOT FOR SUBMISSION")
        sources.apply(base, patch)
        if compiling:
            compile_touched(base, patch)
    print(f"{base.name} test-only: {len(found)} patches apply ({time.monotonic() - begun:.0f} s)", flush=True)


def check_base(base: Base, compiling: bool) -> int:
    """Returns the number of series that fail."""
    bad = 0
    with sources.locked(base):
        sources.fetch(base)
        if compiling:
            sources.configure(base)
            sources.make(base, "prepare")
        for series in sources.SERIES:
            try:
                check_series(base, series, compiling)
            except (PatchError, FormError) as e:
                print(f"check: error: {base.name} {series}: {e}", file=sys.stderr)
                bad += 1
        check_test_only(base, compiling)
    return bad


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    p.add_argument("--form", action="store_true", help="compile nothing")
    p.add_argument("--tree", type=Path, metavar="DIR", help="the newest series on the commit of this clone")
    p.add_argument("base", nargs="*", choices=[[], *sources.bases()], help="default: all")
    return p.parse_args(argv)


def main() -> int:
    """Entry point."""
    options = parse()
    known = sources.bases()
    bad = 0
    try:
        chosen = (
            [sources.of_tree(options.tree)] if options.tree else [known[n] for n in options.base or known]
        )
        for base in chosen:
            bad += check_base(base, not options.form)
    except (PatchError, subprocess.CalledProcessError, sources.kernels.GuestError) as e:
        print(f"check: error: {e}", file=sys.stderr)
        bad += 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
