# SPDX-License-Identifier: GPL-2.0-only
"""Coverage-guided fuzzing of the code that reads hostile files."""
