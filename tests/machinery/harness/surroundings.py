# SPDX-License-Identifier: GPL-2.0-only
"""Environment of the tests: no settings of the user; settings that must not matter vary with the seed."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
#: Values that must not affect any test.
ZONES = ("UTC", "Asia/Kathmandu", "America/St_Johns", "Pacific/Apia")
LOCALES = ("C", "C.UTF-8", "POSIX")
UMASKS = (0o022, 0o077, 0o002, 0o027)
#: Variables that tests inherit from the caller's environment; the rest is personal (PYTHONPATH, LS_COLORS, PERF_CONFIG ...).
PASSED_ON = ("PATH", "NSIGHT_REQUIRE", "NSIGHT_TEST_MOUNTS", "TRACE_PROCESSOR", "CI")


def environment(seed: int, directory: Path) -> tuple[dict[str, str], int]:
    """Environment and umask of a run; its home directory is a new empty one below ``directory``."""
    rng = random.Random(seed)
    home = directory / "home"
    home.mkdir(mode=0o700)
    user = Path(os.environ.get("HOME", "/"))
    env = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    env |= {
        "HOME": str(home),
        # The directory with the key of stored tables; decoded captures in build/cache use it.
        "XDG_STATE_HOME": str(ROOT / "build/cache/state"),
        "TZ": rng.choice(ZONES),
        "LC_ALL": rng.choice(LOCALES),
        "PYTHONHASHSEED": str(rng.randrange(1, 1 << 32)),
        "TERM": "dumb",
        # Rust's own toolchain and packages stay where they are: they are installed programs.
        "CARGO_HOME": os.environ.get("CARGO_HOME", str(user / ".cargo")),
        "RUSTUP_HOME": os.environ.get("RUSTUP_HOME", str(user / ".rustup")),
    }
    if not shutil.which("rustup"):
        del env["RUSTUP_HOME"]
    return env, rng.choice(UMASKS)
