"""What is compared: a configuration, a folder, a revision."""

from __future__ import annotations

from pathlib import Path

import pytest

from bexplore.errors import EngineError
from bexplore.guard.pairs import refuse_foreign
from bexplore.guard.reference import Reference, find_foreign_files, open_reference
from tests.unit.guard.builders import write_job


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return write_job(tmp_path, "perceptron")


def test_a_second_configuration_or_folder_is_a_reference_too(job, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    write_job(other, "breaking")

    with open_reference(str(other / "job.yaml"), job) as by_file, open_reference(str(other), job) as by_folder:
        assert by_file.config_path == by_folder.config_path == other / "job.yaml"


def test_a_reference_that_imports_the_present_code_is_refused():
    reference = Reference(title="main (0123456789)", config_path=Path("job.yaml"), foreign_root=Path("/repository"))
    files = ["/repository/model.py", "/repository/.venv/lib/site-packages/torch/__init__.py"]

    assert find_foreign_files(files) == ["/repository/model.py"]
    with pytest.raises(EngineError, match="of the present checkout"):
        refuse_foreign(find_foreign_files(files), reference)
    refuse_foreign([], reference)
