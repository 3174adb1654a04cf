# SPDX-License-Identifier: GPL-2.0-only
"""The story as Markdown: what was recorded, the report's own words, what was changed, the tail latency."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from .measure import PERCENTILES, Diagnosis
from .stories import Setup, Story

LOWER, UPPER = 25, 30  # the slice for the comparison outside the tail, as in section 7.4 of the paper


@dataclass
class Iteration:
    """One setup: what was recorded, what the report said, and its tails (one for each round, in us)."""

    setup: Setup
    recorded: str
    diagnosis: Diagnosis
    tails: list[dict[float, float]] = field(default_factory=list)


def words(text: str) -> str:
    """The report's answer: its words, then from the number of messages to the causes; without losses and single messages."""
    said = text.partition("\n\nMode: ")[0].partition("\n\n")[2]  # after the line with name and host
    body = text[text.index("Messages: ") :]
    for end in ("\nSlowest messages", "\nFigures and the whole report"):
        body = body.partition(end)[0]
    return f"{said.strip()}\n\n{body.strip()}"


def us(value: float) -> str:
    """A latency as readable text.

    >>> us(57.32), us(2210.4), us(27890.2)
    ('57 us', '2.2 ms', '28 ms')
    """
    if value < 1000:
        return f"{value:.0f} us"
    return f"{value / 1000:.1f} ms" if value < 10000 else f"{value / 1000:.0f} ms"


def spread(values: list[float]) -> str:
    """Median of the rounds, and their least and largest.

    >>> spread([3.0, 1.0, 2.0])
    '2 us (1 us - 3 us)'
    """
    return f"{us(statistics.median(values))} ({us(min(values))} - {us(max(values))})"


def tail_table(iterations: list[Iteration]) -> str:
    """Rows of setups, columns of percentiles."""
    head = ["setup", *(f"p{p:g}" for p in PERCENTILES)]
    rows = [head, ["---"] * len(head)]
    for it in iterations:
        rows.append([it.setup.name, *(spread([t[p] for t in it.tails]) for p in PERCENTILES)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def effect(before: Iteration, after: Iteration) -> str:
    """The effect of a change on the tail, in one line."""
    parts = []
    for p in (50.0, 99.0, 99.9):
        old, new = (statistics.median([t[p] for t in it.tails]) for it in (before, after))
        parts.append(f"p{p:g} {us(old)} -> {us(new)}")
    return ", ".join(parts)


def block(text: str) -> str:
    """As code."""
    return "\n".join(f"    {line}".rstrip() for line in text.splitlines())


def quoted(diagnosis: Diagnosis) -> str:
    """A command and its report."""
    return f"`{diagnosis.command}`:\n\n{block(words(diagnosis.text))}"


def story_page(
    story: Story, iterations: list[Iteration], comparisons: list[Diagnosis], rounds: int, seconds: float
) -> str:
    """The whole story."""
    parts = [f"## {story.name}: {story.about}"]
    for i, it in enumerate(iterations):
        parts.append(f"### Iteration {i + 1}: {it.setup.name}")
        if i:
            parts.append(f"Changed: {it.setup.change}.")
        parts.append(f"Recorded: {it.recorded}.")
        parts.append(quoted(it.diagnosis))
        if i and it.tails:
            parts.append(f"Without recording, before and after the change: {effect(iterations[i - 1], it)}.")
    if iterations[0].tails:
        parts.append("### The tail, without recording")
        parts.append(
            f"Latency at the client, from when a request was due to its answer: median of {rounds} runs of "
            f"{seconds:g} s for\neach setup, taken in turns, and the least and largest."
        )
        parts.append(tail_table(iterations))
    if comparisons:
        parts.append("### First and last capture compared")
        parts += [quoted(d) for d in comparisons]
    return "\n\n".join(parts) + "\n"
