#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Check every series on every base: git am, checkpatch, recipients, documents, objects, selftests.

Each patch is applied to the pristine sources alone with its predecessors, and what it touches is
compiled (W=1 on the newest base) before the next. ``check.py [--form] [BASE...]`` takes only these bases;
``--form`` compiles nothing. The series of perf has a check of its own, perf/check.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import sources
from sources import Base, PatchError

#: Objects that a header is compiled into, beside those of the .c files of the same patch.
HEADERS = {
    "include/trace/events/timekeeping.h": ["kernel/time/timekeeping.o"],
    "include/trace/events/sock.h": ["net/core/net-traces.o", "net/ipv4/af_inet.o"],
    "include/linux/clocksource_ids.h": ["kernel/time/timekeeping.o"],
}


def allowed() -> list[tuple[str, str]]:
    """Type and file pattern of each exception in checkpatch.allow."""
    lines = (sources.HERE / "checkpatch.allow").read_text().splitlines()
    return [
        (words[0], words[1]) for line in lines if line and line[0] != "#" and (words := line.split(None, 2))
    ]


def checkpatch(base: Base, patch: Path) -> int:
    """Number of excused complaints; PatchError on any other."""
    argv = [
        "perl",
        "scripts/checkpatch.pl",
        "--strict",
        "--terse",
        "--showfile",
        "--show-types",
        "--no-summary",
        "--max-line-length=100",
        str(patch),
    ]
    # Its helpers are Python: Debian's, which has their modules, and not one that the user put before it.
    env = dict(os.environ, PATH=f"/usr/bin:{os.environ['PATH']}")
    out = subprocess.run(argv, cwd=base.tree, env=env, capture_output=True, text=True, check=False)
    touched = files(patch)
    excused = 0
    for line in out.stdout.splitlines():
        m = re.match(r"(?:(\S+?):\d+: )?.*?(ERROR|WARNING|CHECK):(\w+):", line)
        if not m:
            continue
        # Complaints about the patch as a whole name the patch, not a file of the kernel.
        named = m[1] if m[1] in touched else None
        where = [named] if named else touched
        if any(m[3] == kind and all(re.match(pattern, f) for f in where) for kind, pattern in allowed()) or (
            m[3] == "FILE_PATH_CHANGES" and created_are_covered(base, patch)
        ):
            excused += 1
        else:
            raise PatchError(f"{patch.name}: checkpatch: {line}")
    if out.returncode and not excused:
        raise PatchError(f"{patch.name}: checkpatch failed\n{out.stdout}{out.stderr}")
    return excused


def created_are_covered(base: Base, patch: Path) -> bool:
    """Whether all new files lie in folders of checkpatch.allow."""
    new = re.findall(r"^--- /dev/null\n\+\+\+ b/(\S+)", patch.read_text(), re.M)
    patterns = [p for kind, p in allowed() if kind == "FILE_PATH_CHANGES"]
    return all(any(re.match(p, f) for p in patterns) for f in new)


def files(patch: Path) -> list[str]:
    """Paths that a patch changes."""
    return re.findall(r"^\+\+\+ b/(\S+)", patch.read_text(), re.M)


def compile_touched(base: Base, patch: Path) -> int:
    """Build the objects, selftests and documents that the patch touches; returns how many."""
    touched = files(patch)
    objects: list[str] = []
    for f in touched:
        if f.endswith(".c") and f.split("/")[0] in ("arch", "drivers", "kernel", "net"):
            objects.append(f[:-1] + "o")
        objects += HEADERS.get(f, [])
    if objects:
        # Files of old kernels have complaints of their own at W=1.
        extra = ["W=1"] if base.name == next(iter(sources.bases())) else []
        sources.make(base, *extra, *sorted(set(objects)))
    n = len(set(objects))
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


def recipients(base: Base, patch: Path) -> set[str]:
    """Addresses that get_maintainer.pl gives for a patch, without those that git history suggests."""
    argv = ["perl", "scripts/get_maintainer.pl", "--nogit", "--nogit-fallback", "--norolestats", str(patch)]
    out = subprocess.run(argv, cwd=base.tree, capture_output=True, text=True, check=True).stdout
    return {m[0].lower() for line in out.splitlines() if (m := re.search(r"[\w.+-]+@[\w.-]+", line))}


def cover(base: Base, series: str) -> str:
    """The cover letter; it must exist and name the base."""
    path = sources.HERE / series / base.name / "0000-cover-letter.patch"
    text = path.read_text()
    if f"base-commit: {base.commit}" not in text:
        raise PatchError(f"{series}/{base.name}: the cover letter does not name base-commit {base.commit}")
    return text


def check_series(base: Base, series: str, compiling: bool = True) -> None:
    """All checks of one series on one base."""
    begun = time.monotonic()
    letter = cover(base, series).lower()
    sources.reset(base, f"check-{series}")
    done = excused = compiled = 0
    wanted: set[str] = set()
    for patch in sources.patches(series, base):
        text = patch.read_text()
        if re.search(r"^(Signed-off-by|Reviewed-by|Acked-by|Tested-by):", text, re.M):
            raise PatchError(f"{patch.name}: has a tag that only a person gives")
        if not re.search(r"^Assisted-by: ", text, re.M):
            raise PatchError(f"{patch.name}: no Assisted-by")
        sources.apply(base, patch)
        excused += checkpatch(base, patch)
        compiled += compile_touched(base, patch) if compiling else 0
        wanted |= recipients(base, patch)
        done += 1
    # Backports are for users, not for maintainers.
    if base.name == next(iter(sources.bases())):
        missing = {a for a in wanted if a not in letter}
        if missing:
            raise PatchError(f"{series}/{base.name}: get_maintainer also names {' '.join(sorted(missing))}")
    took = time.monotonic() - begun
    print(
        f"{base.name} {series}: {done} patches apply to {base.version}, {compiled} objects and programs compile,"
        f" {excused} complaints of checkpatch excused, {len(wanted)} recipients ({took:.0f} s)",
        flush=True,
    )


def check_test_only(base: Base, compiling: bool = True) -> None:
    """Patches of the guest apply and compile; nobody sends them, so their form is not looked at."""
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


def main() -> int:
    """Entry point."""
    known = sources.bases()
    compiling = "--form" not in sys.argv[1:]
    chosen = [a for a in sys.argv[1:] if a != "--form"] or list(known)
    bad = 0
    for name in chosen:
        if name not in known:
            print(f"check: error: no base {name} (hint: one of {' '.join(known)})", file=sys.stderr)
            return 2
        base = known[name]
        try:
            with sources.locked(base):
                sources.fetch(base)
                if compiling:
                    sources.configure(base)
                    sources.make(base, "prepare")
                for series in sources.SERIES:
                    try:
                        check_series(base, series, compiling)
                    except PatchError as e:
                        print(f"check: error: {base.name} {series}: {e}", file=sys.stderr)
                        bad += 1
                check_test_only(base, compiling)
        except (PatchError, subprocess.CalledProcessError, sources.kernels.GuestError) as e:
            print(f"check: error: {e}", file=sys.stderr)
            bad += 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
