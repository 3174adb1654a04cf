# SPDX-License-Identifier: GPL-2.0-only
"""Made-up tables whose answer is known: a scene of a few messages, a whole capture."""
