"""What pyproject.toml cannot say: configs/ is shipped inside the package, and the links of README.md are absolute."""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
EXAMPLES = Path("bexplore", "config", "example_files")  # starter.py, beside it, looks there


class WithExamples(build_py):
    """Copies configs/ into a package that is built; an editable one reads it where it is."""

    def run(self) -> None:
        """Build the package."""
        super().run()
        if not self.editable_mode:
            shutil.copytree(ROOT / "configs", Path(self.build_lib) / EXAMPLES, dirs_exist_ok=True)


def with_absolute_links(text: str, address: str) -> str:
    """Return Markdown whose links to files of the repository lead to its address."""
    return re.sub(r"\]\((?![a-z]+:|#)([^)\s]+)\)", rf"]({address}/blob/main/\1)", text)


if __name__ == "__main__":
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    setup(
        cmdclass={"build_py": WithExamples},
        long_description=with_absolute_links((ROOT / "README.md").read_text(), urls["Repository"]),
        long_description_content_type="text/markdown",
    )
