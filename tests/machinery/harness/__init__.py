# SPDX-License-Identifier: GPL-2.0-only
"""The parts of a test run other than the tests: preconditions, isolation, retries, live judgements, progress."""
