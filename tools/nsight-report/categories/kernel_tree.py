# SPDX-License-Identifier: GPL-2.0-only
"""Function definitions of a kernel source tree, and the rules that give them categories."""

from __future__ import annotations

import fnmatch
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

# Definitions that ctags sees as calls of a macro, or not at all, and the names which these make.
_MACROS = (
    (b"SYSCALL_DEFINE", rb"^(?:COMPAT_)?SYSCALL_DEFINE\d\(\s*(\w+)", ("sys_%s",)),
    (b"BPF_CALL_", rb"^(?:static )?(?:noinline )?BPF_CALL_\d\(\s*(\w+)", ("%s",)),
    (b"IDTENTRY", rb"^DEFINE_(?:FRED)?IDTENTRY\w*\(\s*(\w+)", ("%s", "asm_%s")),
    (b"__bpf_kfunc ", rb"^(?:static )?__bpf_kfunc [\w *]*?(\w+)\(", ("%s",)),
    (b"_ATTRIBUTE(", rb"^DEFINE_(?:SHOW|SEQ|PROC_SHOW)_ATTRIBUTE\((\w+)\)", ("%s_open",)),
)
_ASSEMBLER = re.compile(
    rb"^\s*(?:SYM_(?:INNER_LABEL|(?:TYPED_)?(?:FUNC|CODE)_START)\w*|SYM_FUNC_ALIAS\w*)\(\s*(\w+)", re.M
)
# Code that is thrown away once the kernel, or the module, has started.
_BOOT = re.compile(r"\b__(?:init|exit|meminit|head)\b")
_WORD = re.compile(r"[A-Za-z_]\w*")


class BadRules(ValueError):
    """The rules, or the tree, cannot be used; the text says where and what to do."""


@dataclass(frozen=True)
class Rule:
    """One line: functions of files that fit ``files`` and whose names fit ``names``."""

    files: re.Pattern[str] | None
    names: re.Pattern[str] | None
    category: str


@dataclass
class Rules:
    """The rules file: ``rules`` in order, ``ranks`` of files, ``made`` by macros (pattern, category)."""

    rules: list[Rule] = field(default_factory=list)
    ranks: list[re.Pattern[str]] = field(default_factory=list)
    made: list[tuple[str, str]] = field(default_factory=list)
    directories: set[str] = field(default_factory=set)
    minor: list[re.Pattern[str]] = field(default_factory=list)

    def is_made(self, name: str) -> bool:
        """Whether a line with FILE - claims the name."""
        return any(name == p or (p.endswith("*") and name.startswith(p[:-1])) for p, _ in self.made)

    def rank(self, path: str) -> int:
        """Place of a file among the ranks: the smaller decides."""
        return next((i for i, r in enumerate(self.ranks) if r.match(path)), len(self.ranks))


def _names(patterns: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{fnmatch.translate(p)})" for p in patterns))


def _files(patterns: Iterable[str]) -> re.Pattern[str]:
    """Files that fit, or lie below a directory that fits; * stays within a directory, ** does not."""
    forms = []
    for pattern in patterns:
        form = "".join(
            {"**": ".*", "*": "[^/]*"}.get(part)
            or (part.replace("[!", "[^") if part[0] == "[" else re.escape(part))
            for part in re.split(r"(\*\*|\*|\[[^]]*\])", pattern.rstrip("/"))
            if part
        )
        forms.append(form + ("/.*" if pattern.endswith("/") else "(?:/.*)?"))
    return re.compile("(?:" + "|".join(forms) + r")\Z")


def read_rules(path: Path) -> Rules:
    """Read a rules file. Raises BadRules with the line's number."""
    rules = Rules()
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        fields = line.split(None, 2)
        if not fields or fields[0].startswith("#"):
            continue
        if fields[0] == "rank":
            rules.ranks.append(_files(line.split()[1:]))
            continue
        if fields[0] == "minor":
            rules.minor.append(_files(line.split()[1:]))
            continue
        if len(fields) != 3:
            raise BadRules(f"{path}:{number}: expected FILE NAME CATEGORY (hint: - as CATEGORY leaves out)")
        files, names, category = fields[0], fields[1], fields[2].strip()
        if files == "-":
            for pattern in names.split(","):
                if re.search(r"[][?*]", pattern.removesuffix("*")):
                    raise BadRules(f"{path}:{number}: {pattern}: with FILE -, a * may only end a name")
                rules.made.append((pattern, category))
        else:
            for pattern in files.split(","):
                head = re.split(r"[][?*]", pattern)[0].partition("/")
                if head[1]:
                    rules.directories.add(head[0])
        rules.rules.append(
            Rule(
                None if files in ("-", "**") else _files(files.split(",")),
                None if names == "*" else _names(names.split(",")),
                "" if category == "-" else category,
            )
        )
    return rules


def definitions(tree: Path, directories: Iterable[str]) -> set[tuple[str, str]]:
    """(name, file) of every function definition below ``directories`` of ``tree``; needs universal-ctags."""
    there = sorted(f for f in directories if (tree / f).is_dir())
    if not there:
        raise BadRules(f"{tree}: no kernel source tree (hint: unpack linux-source-VERSION.tar.xz)")
    command = ["ctags", "-R", "--languages=C", "--langmap=C:.c.h", "--kinds-C=f", "--fields=", "--sort=no",
               "--extras=F", "-f", "-", *there]  # fmt: skip
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, errors="replace", check=True)
    found = set()
    for line in done.stdout.splitlines():
        name, file, text = line.split("\t", 2)
        if _BOOT.search(text):
            continue
        # SYSCALL_DEFINE3(read, ...) and the like: taken from the text below.
        if not name.isupper() and _WORD.fullmatch(name):
            found.add((name, file))
    for directory in there:
        for path in sorted((tree / directory).rglob("*.[chS]")):
            if path.is_file():
                file = str(path.relative_to(tree))
                found |= {(name, file) for name in _made_by_macros(path.read_bytes(), path.suffix)}
    return found


def _made_by_macros(text: bytes, suffix: str) -> set[str]:
    if suffix == ".S":
        return {m.decode() for m in _ASSEMBLER.findall(text)}
    return {
        form % m.decode()
        for word, pattern, forms in _MACROS
        if word in text
        for m in re.findall(pattern, text, re.M)
        for form in forms
    }


@dataclass
class Assigned:
    """Category of each name; names outside the rules, and which were settled by rank."""

    category: dict[str, str]
    outside: set[str]
    settled: dict[str, list[tuple[str, str]]]
    minor: set[str]  # names that occur in minor files only


def assign(found: set[tuple[str, str]], rules: Rules) -> Assigned:
    """One category for each name.

    Where files give one name different categories, the file of the smallest rank decides, then the category
    of most files, then the alphabet.
    """
    by_file: dict[str, list[str]] = {}
    for name, file in found:
        by_file.setdefault(file, []).append(name)
    votes: dict[str, list[tuple[str, str]]] = {}
    for file in sorted(by_file):
        fitting = [r for r in rules.rules if r.files is None or r.files.match(file)]
        for name in by_file[file]:
            category = next(
                (r.category for r in reversed(fitting) if r.names is None or r.names.match(name)), ""
            )
            if category:
                votes.setdefault(name, []).append((file, category))
    result, settled, minor = {}, {}, set()
    far = {f for f in by_file if any(m.match(f) for m in rules.minor)}
    for name, cast in votes.items():
        if len({c for _, c in cast}) > 1:
            settled[name] = cast
            best = min(rules.rank(f) for f, _ in cast)
            cast = [(f, c) for f, c in cast if rules.rank(f) == best]
        if all(f in far for f, _ in cast):
            minor.add(name)
        counts: dict[str, int] = {}
        for _, category in cast:
            counts[category] = counts.get(category, 0) + 1
        result[name] = min(counts, key=lambda c: (-counts[c], c))
    return Assigned(result, {n for n, _ in found} - result.keys(), settled, minor)
