# SPDX-License-Identifier: GPL-2.0-only
"""Inputs that stay JSON: every other one has a value replaced, moved or nested, the rest any bytes."""

from __future__ import annotations

import json
import random
from typing import Any

import atheris

_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 1.5, float("inf"), float("nan"), 1 << 31, 1 << 62, 1 << 63, 1 << 64, -(1 << 63),
    10**30, 10**4000, "", "x", "\x00", "\x1b[31m", "\u202e", "\ud800", "\U0010ffff", "a" * 2000, [], {}, [[]],
    {"": ""},
)  # fmt: skip
Place = tuple[Any, Any]


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """libFuzzer's custom mutator."""
    chance = random.Random(seed)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    places = list(_places(value))
    if not places or chance.random() < 0.5:
        return bytes(atheris.Mutate(data, max_size))
    try:
        for _ in range(chance.randint(1, 3)):
            _change(places, chance)
        made = _text(value, chance)
    except RecursionError:
        made = data
    return made if len(made) <= max_size else bytes(atheris.Mutate(data, max_size))


def _places(value: Any) -> list[Place]:
    """Each container, with each of its keys or numbers."""
    found: list[Place] = []
    todo = [value]
    while todo:
        at = todo.pop()
        keys = list(at) if isinstance(at, dict) else range(len(at)) if isinstance(at, list) else ()
        found += [(at, key) for key in keys]
        todo += [at[key] for key in keys]
    return found


def _change(places: list[Place], chance: random.Random) -> None:
    at, key = chance.choice(places)
    if (isinstance(at, list) and key >= len(at)) or (isinstance(at, dict) and key not in at):
        return  # gone with the change before
    what = chance.random()
    if what < 0.6:
        at[key] = chance.choice(_VALUES)
    elif what < 0.7:
        del at[key]
    elif what < 0.8:
        at[key] = [json.loads(json.dumps(at[key]))] * chance.randint(0, 3)
    elif what < 0.9 and isinstance(at[key], (int, float)):
        at[key] += chance.choice((1, -1, 1 << 32, -(1 << 32)))
    else:
        other, name = chance.choice(places)
        if isinstance(other, dict):
            at[key] = json.loads(json.dumps(other.get(name)))


def _text(value: Any, chance: random.Random) -> bytes:
    """``value`` as JSON; now and then nested as deep as a reader in Python can just follow."""
    text = json.dumps(value)
    if isinstance(value, dict) and value and chance.random() < 0.05:
        depth = chance.randint(900, 1000)
        name = json.dumps(chance.choice(list(value)))
        text = f"{text[:-1]}, {name}: {'[' * depth}{']' * depth}}}"
    return text.encode()
