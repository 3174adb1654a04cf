# SPDX-License-Identifier: GPL-2.0-only
"""nsight-monitor against the kernel's own counters, and the runs of an article, each as a command."""
