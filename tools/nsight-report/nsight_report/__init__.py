# SPDX-License-Identifier: GPL-2.0-only
"""NSight: from a capture of message timestamps and CPU activity to the causes of slow messages.

>>> import nsight_report
>>> c = nsight_report.open("x.nsight", port=11211)     # doctest: +SKIP
>>> c.messages, c.contexts, c.causes                    # doctest: +SKIP

Every table of ``schema.py`` is an attribute of the capture, as a pandas DataFrame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import BadInput, Missing, NsightError, OutputError

if TYPE_CHECKING:
    from .api import Capture

__version__ = "0.1.0"
__all__ = ["BadInput", "Missing", "NsightError", "OutputError", "__version__", "open"]


def open(capture: str, **options: Any) -> Capture:  # named as in tarfile.open, PIL.Image.open
    """Open a capture directory: see ``api.open_capture``."""
    from .api import open_capture  # pandas takes most of a second to import: not for --help

    return open_capture(capture, **options)
