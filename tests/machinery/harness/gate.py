# SPDX-License-Identifier: GPL-2.0-only
"""How many judgements of a live machine may be wrong before a run fails.

No live answer is certain: the host of a virtual machine takes its cores away, and other work on it causes delays, too.
``make flake`` counted how many answers a correct tree gets wrong. A run fails if it has more wrong answers than a
correct tree has once in ``1 / CHANCE`` runs; the uncertainty of the counted rate is taken into account.

The rate p of wrong answers has the distribution Beta(a, b) with a = rounds * wrong / judged + 1/2 and b = rounds *
(1 - wrong / judged) + 1/2. Rounds count, not judgements: the judgements of one round share the machine's good or bad
hour. The number of wrong answers among n is then beta-binomial.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

#: For each bound, the chance that it refuses a run of a correct tree. There is one bound for each family in SEEN.
CHANCE = 1e-4


@dataclass(frozen=True)
class Seen:
    """Wrong answers of correct trees: ``wrong`` of ``judged`` answers in ``rounds`` rounds."""

    rounds: int
    judged: int
    wrong: int


#: Counted by ``make flake`` (Documentation/testing.md has the tables), idle and busy rounds together. With fewer than about
#: eight rounds there is no bound that holds this often: answers are then printed, and fail nothing.
SEEN = {
    # Injected causes that must be the largest cause of the messages they hit, and controls that must not name a cause.
    "truth": Seen(rounds=14, judged=125, wrong=40),
    # Disturbances, the demo and the case study, as seen by the client and by the report.
    "live": Seen(rounds=14, judged=139, wrong=1),
}


def chance(k: int, n: int, seen: Seen) -> float:
    """The chance that a correct tree has more than ``k`` wrong answers among ``n``."""
    from scipy.stats import betabinom

    rate = seen.wrong / seen.judged
    return float(betabinom.sf(k, n, seen.rounds * rate + 0.5, seen.rounds * (1 - rate) + 0.5))


def allowed(n: int, seen: Seen) -> int:
    """The smallest number of wrong answers among ``n`` that a correct tree exceeds with a chance of CHANCE at most; ``n`` if there is no bound."""
    return next(k for k in range(n + 1) if chance(k, n, seen) <= CHANCE)


def verdict(judged: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
    """Lines about all judgements, and the families with too many wrong ones.

    A family that was not counted, or not in enough rounds, has no bound and fails nothing.
    """
    families: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for j in judged:
        families[j["family"]].append(j)
    lines, failed = [], []
    for family, rows in sorted(families.items()):
        wrong = [j for j in rows if not j["right"]]
        seen = SEEN.get(family)
        most = allowed(len(rows), seen) if seen else len(rows)
        bound = "no bound yet: nobody has counted"
        if seen:
            bound = f"no bound: so few may all be wrong ({seen.wrong} of {seen.judged} were in {seen.rounds} rounds)"
        if seen and most < len(rows):
            bound = (
                f"more than {most} wrong fail the run (a correct tree in {chance(most, len(rows), seen):.0e} of runs, "
                f"from {seen.wrong} wrong of {seen.judged} in {seen.rounds} rounds)"
            )
        lines.append(f"{family}: {len(rows) - len(wrong)} of {len(rows)} right; {bound}")
        lines += [f"  {'right' if j['right'] else 'WRONG'}  {j['name']}: {j['figures']}" for j in rows]
        if len(wrong) > most:
            failed.append(family)
    return lines, failed
