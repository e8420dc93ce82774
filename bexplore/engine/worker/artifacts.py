"""Keeps what the compiler made of the final answer, so that the user's training need not compile it again.

The directory is that of Inductor's own cache: on the CPU `torch.compiler.save_cache_artifacts` leaves the compiled
libraries out (seen with torch 2.13), and a cache of its own makes the compile seconds of the final answer cold ones.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from torch._inductor.runtime.cache_dir_utils import cache_dir

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
# The programs with which Inductor tries vector instructions have 151 to 459 bytes, the smallest kernel 4.8 kB. Bytes.
_LARGEST_TRIAL_BYTES = 1024


def keep_artifacts_in(folder: Path) -> None:
    """From now on the compiler of this process reads and writes only there.

    Trials of the processor's instructions are taken along: they are the machine's, and cost seconds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for source in Path(cache_dir()).glob("??/*.cpp"):
        library = source.with_suffix(".so")
        if source.stat().st_size <= _LARGEST_TRIAL_BYTES and library.is_file():
            place = folder / source.parent.name
            place.mkdir(exist_ok=True)
            for file in (source, library):
                shutil.copy2(file, place / file.name)
    os.environ[VARIABLE] = str(folder.resolve())
