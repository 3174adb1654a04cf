# SPDX-License-Identifier: GPL-2.0-only
"""The bed of the demo (tools/nsight-demo) as tests and evaluation need it.

``Testbed`` has ports of its own and the machine's turn. ``injections`` disturb the server and log when they did: the truth that
a diagnosis is compared with.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tools/nsight-demo"))
