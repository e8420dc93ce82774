"""Words of a command as a shell reads them: what is filled into a script is one word wherever it stands."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from bexplore.config.command import Command, fill_script

FOLDERS = (
    "a b",
    "it's",
    'say "x"',
    "$(touch hit)",
    "`touch hit`",
    "a;touch hit",
    "$HOME",
    "back\\slash",
    "*",
    "a\nb",
    "#",
)
PLACES = (
    "{output_dir}",
    "'{output_dir}'",
    '"{output_dir}"',
    "'a'{output_dir}\"b\"",
    '"it\'s "{output_dir}',
    "\\'{output_dir}",
)


@pytest.mark.promise(
    "a folder called `$(rm -rf x)`, filled into `bash -c '... {output_dir}'`", "one word of the script"
)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_a_folder_is_one_word_of_a_script_wherever_it_stands(tmp_path, place, shell):
    for folder in FOLDERS:
        script = fill_script(f"printf %s {place}", {"output_dir": folder})

        done = subprocess.run([shell, "-c", script], capture_output=True, text=True, cwd=tmp_path, check=True)

        expected = subprocess.run(
            [shell, "-c", f"printf %s {place}"], capture_output=True, text=True, check=True
        ).stdout
        assert done.stdout == expected.replace("{output_dir}", folder)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [("bash", "-c"), ("env", "A=1", "sh", "-ec"), ("srun", "bash", "-lc")])
def test_a_script_is_filled_in_quoted_and_any_other_word_as_it_is(words):
    command = Command(argv=(*words, "python t.py --bs {micro_batch_size} --out {output_dir}", "--out={output_dir}"))
    values = command.values(micro_batch_size=4, accumulation=1, num_replicas=1, folder=Path("/runs/a b"))

    argv, _ = command.filled(values)

    assert argv[-2:] == ["python t.py --bs 4 --out '/runs/a b/output'", "--out=/runs/a b/output"]
    assert tuple(shlex.split(command.shown)) == command.argv  # what is shown can be typed
