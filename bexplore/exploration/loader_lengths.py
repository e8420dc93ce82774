"""`explore.lengths: {from: loader}`: the lengths of samples, read from the user's own loader in a worker of its own."""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from pathlib import Path

from bexplore.config.config import Config
from bexplore.config.sections.lengths import give_lengths
from bexplore.engine.process.timeouts import Limits, Progress
from bexplore.engine.program_client import RESIDENT_BYTES, ask_once
from bexplore.engine.protocol.messages import Done, ReadLengths, Refused
from bexplore.errors import UserProgramError

# Between two reports of progress: before its first batch a loader may start processes, or open a large data set.
STAGE_LIMIT_S = 300.0


def with_loader_lengths(config: Config, on_progress: Progress = lambda message: None) -> Config:
    """Return a job with the lengths that its loader gives, where the file takes them from there.

    Raises:
        UserInputError: The loader gives none.
        UserProgramError: The user's loader fails.
    """
    options = config.explore.lengths
    if options is None or options.source is None or config.job.lengths is not None:
        return config
    on_progress({"stage": "lengths"})
    with tempfile.TemporaryDirectory() as folder:
        answer = ask_once(
            ReadLengths(job=config.job, num_samples=options.num_samples),
            Path(folder, "loader.log"),
            limits=Limits(stage_s=STAGE_LIMIT_S, resident_bytes=RESIDENT_BYTES),
            on_progress=on_progress,
        )
    if isinstance(answer, Refused):
        raise answer.error()
    if not isinstance(answer, Done):
        raise UserProgramError(
            f"the lengths of samples cannot be read from the loader: {answer.reason}",
            traceback_text=answer.traceback_text,
        )
    lengths = answer.values["lengths"]
    give = functools.partial(give_lengths, config.explore, samples=lengths, in_tokens=config.request.is_in_tokens)
    job, warnings = give(config.job)
    variants = tuple(dataclasses.replace(one, job=give(one.job)[0]) for one in config.variants)
    return dataclasses.replace(config, job=job, variants=variants, warnings=(*config.warnings, *warnings))
