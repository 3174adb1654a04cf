# SPDX-License-Identifier: GPL-2.0-only
"""What a test run is made of, apart from its tests: preconditions, isolation, retries, live judgements, progress."""
