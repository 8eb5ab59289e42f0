"""Puts the configuration tree into a built package, conf/ as acct/conf/; everything else is said in pyproject.toml."""

from __future__ import annotations

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

CONF = Path(__file__).parent / "conf"


class BuildWithConfiguration(build_py):
    """`build_py` that also copies conf/. An editable install reads the folder where it lies, and personal settings stay at home."""

    def build_package_data(self) -> None:
        super().build_package_data()
        if self.editable_mode:
            return
        for source in sorted(CONF.rglob("*.yaml")):
            place = source.relative_to(CONF)
            if place.parts[0] != "local":
                target = Path(self.build_lib, "acct", "conf", place)
                self.mkpath(str(target.parent))
                self.copy_file(str(source), str(target), preserve_mode=False)


setup(cmdclass={"build_py": BuildWithConfiguration})
