# SPDX-License-Identifier: GPL-2.0-only
"""The demo's testbed (tools/nsight-demo), adapted for tests and evaluation.

``Testbed`` reserves ports and the machine's turn. ``injections`` disturb the server and log when they did so: a diagnosis is
compared with this truth.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools/nsight-demo"))
