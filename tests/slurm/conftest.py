"""A Slurm cluster of one node, where Debian's slurm-wlm and munge are installed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "slurm.sh"
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun")
SBIN = "/usr/sbin:/sbin"  # where Debian puts the daemons, and an ordinary user's PATH does not look


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Yields the variables with which srun finds the cluster."""
    absent = [name for name in PROGRAMS if not (shutil.which(name) or shutil.which(name, path=SBIN))]
    if absent:
        pytest.skip(f"{', '.join(absent)}: apt-get install --no-install-recommends slurm-wlm munge")
    folder = tmp_path_factory.mktemp("slurm")
    started = subprocess.run(["bash", SCRIPT, "start", folder], capture_output=True, text=True, check=False)
    try:
        assert started.returncode == 0, started.stderr
        name, _, value = started.stdout.strip().partition("=")
        yield {name: value}
    finally:
        subprocess.run(["bash", SCRIPT, "stop", folder], check=True)
