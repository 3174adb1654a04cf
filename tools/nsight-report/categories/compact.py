# SPDX-License-Identifier: GPL-2.0-only
"""The fewest rows that give every name its category by exact name first, then longest prefix.

The table of routes of a router is the same problem, and this is its optimal solution (Draves et al.,
"Constructing Optimal IP Routing Tables", INFOCOM 1999) on a tree of names: from the leaves up, what it costs
a subtree to inherit each category; from the root down, a row wherever inheriting costs more than a row.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence, Set
from dataclasses import dataclass, field

import numpy as np
from nsight_report.attribution.kernel_functions import KernelFunctions

MIN_PREFIX = 3
FAR = 0.9  # rows that it costs when a name far from a message's path is in no row
FOREIGN = 0.1  # rows that it costs when a prefix claims a function of a file that no rule names


@dataclass
class _Node:
    text: str
    label: str  # where a row of this node would stand: a prefix of text, '' when none is allowed
    children: list[_Node] = field(default_factory=list)
    name: str | None = None
    forced: int = -1
    cost: np.ndarray | None = None  # in rows, by inherited category, 0 is none


def compact(
    category: Mapping[str, str],
    made: Sequence[tuple[str, str]] = (),
    unsaid: Mapping[str, float] | None = None,
    foreign: Container[str] = (),
) -> dict[str, str]:
    """Rows, pattern to category: ``name`` or ``prefix*``.

    ``made`` are rows (name or ``prefix*``) that must be among them. ``unsaid`` is what a name costs
    that no row covers, in rows: below 1 it gets no row of its own, but a prefix that claims it for another
    category still has to be contradicted. ``foreign`` names (keys of ``category`` too) are of no category at
    all: a prefix may claim them, but at the cost of a part of a row.
    """
    unsaid = unsaid or {}
    must = dict(made)
    names = sorted({*category, *(p.rstrip("*") for p in must)})
    index = {c: i for i, c in enumerate(sorted({*category.values(), *must.values()} - {""}), 1)}
    size = len(index) + 1
    root = _tree(names, {p.rstrip("*"): index[c] for p, c in must.items() if p.endswith("*")})

    def own_cost(name: str) -> np.ndarray:
        cost = np.ones(size, np.float32)
        if name in must:
            return cost  # its row stands whatever is inherited
        if name not in category:
            return np.zeros(size, np.float32)  # the stem of a made prefix
        if name in foreign:
            cost[:] = FOREIGN
            cost[0] = 0
            return cost
        cost[index[category[name]]] = 0
        cost[0] = unsaid.get(name, 1)
        return cost

    order = [root]
    for node in order:
        order.extend(node.children)
    below: dict[int, np.ndarray] = {}
    for node in reversed(order):
        total = np.zeros(size, np.float32)
        for child in node.children:
            assert child.cost is not None
            total = total + child.cost
        if node.name is not None:
            total = total + own_cost(node.name)
        below[id(node)] = total
        if node.forced >= 0:
            node.cost = np.full(size, 1 + total[node.forced], np.float32)
        elif node.label:
            node.cost = np.minimum(total, 1 + total[1:].min())
        else:
            node.cost = total

    rows = {p: c for p, c in must.items() if not p.endswith("*")}
    by_index = {i: c for c, i in index.items()}
    todo = [(root, 0)]
    while todo:
        node, inherited = todo.pop()
        total = below[id(node)]
        if node.forced >= 0:
            inherited = node.forced
            rows[node.text + "*"] = by_index[inherited]
        elif node.label and total[inherited] > 1 + total[1:].min():
            inherited = 1 + int(total[1:].argmin())
            rows[node.label + "*"] = by_index[inherited]
        name = node.name
        if name is not None and name not in must and own_cost(name)[inherited] >= 1:
            rows[name] = category[name]
        todo += [(child, inherited) for child in node.children]
    return rows


def _tree(names: list[str], forced: Mapping[str, int]) -> _Node:
    """Radix tree of sorted names; a node is a name or what two names have in common."""
    root = _Node("", "")
    path = [root]
    for name in names:
        shared = _common(path[-1].text, name)
        last = None
        while len(path[-1].text) > shared:
            last = path.pop()
        top = path[-1]
        if len(top.text) < shared:
            assert last is not None
            joint = _Node(name[:shared], "", [last])
            top.children[-1] = joint
            path.append(joint)
            top = joint
        node = _Node(name, "", name=name)
        top.children.append(node)
        path.append(node)
    stack = [(root, 0)]
    while stack:
        node, above = stack.pop()
        node.forced = forced.get(node.text, -1)
        if node.children:
            node.label = _boundary(node.text, above)
        stack += [(child, len(node.text)) for child in node.children]
    return root


def _common(a: str, b: str) -> int:
    n = min(len(a), len(b))
    return next((i for i in range(n) if a[i] != b[i]), n)


def _boundary(text: str, above: int) -> str:
    """Where between the parent (exclusive) and this node a prefix reads best: at the end of a word."""
    for end in range(len(text), max(above, MIN_PREFIX - 1), -1):
        if text[end - 1] == "_" and text[:end].strip("_"):
            return text[:end]
    return text if len(text) > above and len(text) >= MIN_PREFIX and text.strip("_") else ""


def table(
    category: Mapping[str, str],
    made: Sequence[tuple[str, str]],
    far: Container[str],
    foreign: Set[str] = frozenset(),
) -> dict[str, str]:
    """Rows for all names. A name with leading underscores needs none when its plain half has one.

    Names in ``far`` get no row of their own alone; ``foreign`` are names outside all rules.
    """
    unsaid = {n: FAR for n in category if n in far}
    category = {**category, **dict.fromkeys(foreign, "")}
    plain = {n: c for n, c in category.items() if not n.startswith("_")}
    rows = compact(plain, [m for m in made if not m[0].startswith("_")], unsaid, foreign)
    found = KernelFunctions(rows)
    inner = {n: c for n, c in category.items() if n.startswith("_")}
    for name, wanted in inner.items():
        if not wanted:
            continue
        without = found.category(name.lstrip("_"))
        if without:
            unsaid[name] = 0.0 if without == wanted else 1.0
    return rows | compact(inner, [m for m in made if m[0].startswith("_")], unsaid, foreign)
