"""What pyproject.toml cannot say: configs/ is shipped inside the package, and the links of README.md are absolute."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
EXAMPLES = "bexplore.config.starter.example_files"  # where examples.py, beside it, looks


def with_absolute_links(text: str, address: str) -> str:
    """Return Markdown whose links to files of the repository lead to its address."""
    return re.sub(r"\]\((?![a-z]+:|#)([^)\s]+)\)", rf"]({address}/blob/main/\1)", text)


if __name__ == "__main__":
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    setup(
        packages=[*find_packages(include=["bexplore*"]), EXAMPLES],
        package_dir={EXAMPLES: "configs"},
        package_data={EXAMPLES: ["*.yaml", "*.yml", "*.json", "*.py"]},
        long_description=with_absolute_links((ROOT / "README.md").read_text(), urls["Repository"]),
        long_description_content_type="text/markdown",
    )
