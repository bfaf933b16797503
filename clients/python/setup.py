"""Marks the wheel as one of this platform, for every Python 3: the library in it is of the first and knows nothing of the second."""

from typing import Tuple

from setuptools import Distribution, setup

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:
    from wheel.bdist_wheel import bdist_wheel


class Binary(Distribution):
    """With a library in it, though not one of the kind that setuptools builds."""

    def has_ext_modules(self) -> bool:
        return True


class Wheel(bdist_wheel):
    def get_tag(self) -> Tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(distclass=Binary, cmdclass={"bdist_wheel": Wheel})
