# SPDX-License-Identifier: GPL-2.0-only
"""nsight-capsule as a whole: two guests through this host, known delays, and unharmed payload."""
