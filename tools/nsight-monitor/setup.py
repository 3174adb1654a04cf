# SPDX-License-Identifier: GPL-2.0-only
"""The wheel contains native programs, which their makefiles build: it is for one platform, and for any Python
3."""

import shutil
import subprocess

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

MAKEFILES = ("histograms",)


class BuildWithPrograms(build_py):
    """Copies the Python modules, and what nsight_monitor/bin links to."""

    def run(self) -> None:
        """Remove everything from an earlier build: otherwise deleted modules would still be installed."""
        shutil.rmtree(self.build_lib, ignore_errors=True)
        for directory in MAKEFILES:
            subprocess.run(["make", "-s", "-C", directory], check=True)
        super().run()


class PlatformWheel(bdist_wheel):
    """Not for one version of Python, since no module is native."""

    def get_tag(self) -> tuple[str, str, str]:
        """Python, ABI, platform."""
        return "py3", "none", super().get_tag()[2]


class WithPrograms(Distribution):
    """Not pure Python."""

    def has_ext_modules(self) -> bool:
        """True: the wheel is for one platform."""
        return True


setup(
    cmdclass={"build_py": BuildWithPrograms, "bdist_wheel": PlatformWheel},
    distclass=WithPrograms,
)
