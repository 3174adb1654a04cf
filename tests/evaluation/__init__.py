# SPDX-License-Identifier: GPL-2.0-only
"""How right and how costly it is: truth, case study, benchmarks."""
