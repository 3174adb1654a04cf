# SPDX-License-Identifier: GPL-2.0-only
"""Records perf, the message probes and clock readings together, into one capture directory.

Standard library only: the recorder must run on the server that has the problem, where
nothing can be installed.
"""

__version__ = "0.1.0"
