# SPDX-License-Identifier: GPL-2.0-only
"""The case study: slow servers diagnosed, changed and measured again (section 7 of the paper)."""
