"""Where the copy of the user's file lies that a start gets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bexplore.command.start import ProbeFolder
from bexplore.config.command import Command
from bexplore.config.load import load_config
from bexplore.errors import UserInputError

OWN = "batch_size: explore\n"


def command(folder: Path, text: str) -> Command:
    (folder / "job.yaml").write_text(text)
    return load_config(
        folder / "job.yaml", overrides=['explore.command=["t", "{config}"]', "explore.writes_are_fine=true"]
    ).command


def write(made: Command, probe: Path) -> Path:
    """Make the folder of a start; return where its copy lies."""
    values = made.values(micro_batch_size=4, accumulation=1, num_replicas=1, folder=probe)
    ProbeFolder(path=probe).write(made, values, {})
    return Path(values["config"])


@pytest.mark.parametrize(
    "text",
    [
        "_BASE_: base.yaml\n",
        "_base_: [../a.yaml]\n",
        "includes:\n  - a.yaml\n",
        "model:\n  extends: a.yaml\n",
        "data: !include data.yaml\n",
        "data: other.yaml\n",
    ],
)
def test_a_copy_lies_beside_a_file_that_names_others_from_there(tmp_path, text):
    (tmp_path / "other.yaml").touch()
    made = command(tmp_path, text + OWN)

    place = write(made, tmp_path / "probe")

    assert (place.parent, place.suffix) == (tmp_path, ".yaml")
    assert place.name.startswith(".job.bexplore-")
    assert place.read_text() == text + "batch_size: 4\n"
    assert place.stat().st_mode & 0o777 == 0o600
    ProbeFolder(path=tmp_path / "probe").clean()
    assert not place.exists() and (tmp_path / "job.yaml").exists()


@pytest.mark.parametrize("text", ["", "data: /a/b.yaml\n", "data: absent.yaml\n", "include_eos: true\n", "base: 3\n"])
def test_any_other_copy_lies_in_the_folder_of_its_start(tmp_path, text):
    assert write(command(tmp_path, text + OWN), tmp_path / "probe") == tmp_path / "probe" / "job.yaml"


def test_a_copy_for_a_command_that_takes_a_folder_lies_among_links_to_the_users_other_files(tmp_path):
    folder = tmp_path / "settings"
    folder.mkdir()
    for name in ("data.yaml", "job.yaml"):
        (folder / name).write_text("_BASE_: data.yaml\n" + OWN)
    (folder / "more").mkdir()
    overrides = ['explore.command=["t", "{config_dir}"]', "explore.writes_are_fine=true"]
    made = load_config(folder / "job.yaml", overrides=overrides).command
    probe = folder / "results" / "probe"  # a folder that holds itself would have no end

    place = write(made, probe)

    assert made.filled(made.values(micro_batch_size=4, accumulation=1, num_replicas=1, folder=probe))[0] == [
        *("t", str(place.parent))
    ]
    assert place.read_text() == "_BASE_: data.yaml\nbatch_size: 4\n"
    assert {one.name for one in place.parent.iterdir()} == {"data.yaml", "more", "job.yaml"}
    assert (place.parent / "data.yaml").resolve() == folder / "data.yaml"
    ProbeFolder(path=probe).clean()
    assert not place.exists() and (folder / "data.yaml").exists() and (folder / "more").exists()


def test_two_starts_have_two_copies_and_those_of_the_dead_go(tmp_path):
    made = command(tmp_path, "_BASE_: b.yaml\n" + OWN)
    dead = os.fork()
    if dead == 0:
        os._exit(0)
    os.waitpid(dead, 0)
    left, other = tmp_path / f".job.bexplore-{dead}-0123abcd.yaml", tmp_path / ".job.bexplore-x-1.toml"
    left.touch()
    other.touch()

    places = {write(made, tmp_path / "one"), write(made, tmp_path / "two")}

    assert len(places) == 2 and all(place.exists() for place in places)
    assert not left.exists() and other.exists()


def test_a_folder_that_cannot_hold_copies_is_an_error_with_the_reason(tmp_path, monkeypatch):
    made = command(tmp_path, "_BASE_: b.yaml\n" + OWN)

    def refuse(*_args, **_options) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "touch", lambda path, *args, **options: refuse() if path.name[0] == "." else None)
    with pytest.raises(UserInputError, match="its copies cannot lie there: Permission denied") as raised:
        write(made, tmp_path / "probe")
    assert "absolute paths" in raised.value.hint
