# SPDX-License-Identifier: GPL-2.0-only
"""How accurate and how costly NSight is: truth, case study, benchmarks."""
