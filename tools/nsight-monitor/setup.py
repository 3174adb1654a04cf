# SPDX-License-Identifier: GPL-2.0-only
"""The wheel holds native programs, which their makefiles build: it is of this platform, and of any Python 3."""

import shutil
import subprocess

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

MAKEFILES = ("histograms",)


class BuildWithPrograms(build_py):
    """Python modules, and what nsight_monitor/bin links to."""

    def run(self) -> None:
        """Nothing of an earlier build stays: modules that are gone would still be installed."""
        shutil.rmtree(self.build_lib, ignore_errors=True)
        for directory in MAKEFILES:
            subprocess.run(["make", "-s", "-C", directory], check=True)
        super().run()


class PlatformWheel(bdist_wheel):
    """Not of one version of Python, since no module is native."""

    def get_tag(self) -> tuple[str, str, str]:
        """Python, ABI, platform."""
        return "py3", "none", super().get_tag()[2]


class WithPrograms(Distribution):
    """Not pure Python."""

    def has_ext_modules(self) -> bool:
        """The wheel is of one platform."""
        return True


setup(
    cmdclass={"build_py": BuildWithPrograms, "bdist_wheel": PlatformWheel},
    distclass=WithPrograms,
)
