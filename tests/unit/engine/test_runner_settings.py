"""What a runner asks of its workers, by its settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from bexplore.engine.protocol.messages import RunProbe, SharedMode
from bexplore.engine.runner import RunnerSettings
from bexplore.measurement.probe import Compilation, Probe, Purpose
from tests.builders import imported_job


@pytest.mark.promise("a job in a folder with blanks", "explored; its compiled program is not kept")
@pytest.mark.parametrize(("folder", "is_kept"), [("/job", True), ("/my job", False), ("/it's", False)])
def test_the_compiler_builds_where_its_command_can_name_the_folder_alone(folder, is_kept):
    settings = RunnerSettings(job=imported_job(backend="inductor"), run_dir=Path(folder), keeps_artifacts=True)
    probe = Probe(number=0, micro_batch_size=4, compilation=Compilation.EXACT, purpose=Purpose.VERIFY)

    request = settings.request(RunProbe, probe, SharedMode.DYNAMIC, None)

    assert request.artifacts_dir == (f"{folder}/compiled/micro_batch_size_4" if is_kept else None)
