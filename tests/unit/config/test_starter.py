from __future__ import annotations

from pathlib import Path

import pytest

from bexplore.config import starter
from bexplore.errors import UserInputError


@pytest.mark.parametrize(
    ("script", "text", "hint"),
    [
        (
            "from torch.utils.data import DataLoader\nDataLoader([], shuffle=True,\n  batch_size=32)\n",
            ":3: batch_size=32 is fixed in the script",
            '  batch_size=int(os.environ.get("MICRO_BATCH_SIZE", 32)))\n',
        ),
        (
            "BATCH_SIZE = 16\n",
            ":1: BATCH_SIZE=16 is fixed",
            "--env MICRO_BATCH_SIZE={micro_batch_size} --writes-are-fine -- python",
        ),
        (
            "from transformers import Trainer, TrainingArguments\n"
            "Trainer(args=TrainingArguments(per_device_train_batch_size=8))\n",
            ":2: per_device_train_batch_size=8 is fixed",
            "bexplore.transformers.explore",
        ),
        ("import lightning.pytorch as pl\nbatch_size = 4\n", ":2: batch_size=4 is fixed", "MicroBatchSizeFinder"),
        ("print()\n", "is a micro-batch size", "write {micro_batch_size} where"),
        ("points = 2540\n", "is a micro-batch size", "--env MICRO_BATCH_SIZE={micro_batch_size} --writes-are-fine"),
        ("batch_size = True\n", "is a micro-batch size", "write {micro_batch_size} where"),
    ],
)
def test_a_size_that_a_script_fixes_is_named_with_its_line_and_the_way_out(tmp_path, script, text, hint):
    path = tmp_path / "train.py"
    path.write_text(script)

    with pytest.raises(UserInputError) as raised:
        starter.from_script(path)

    assert text in raised.value.message
    assert hint in raised.value.hint


@pytest.mark.parametrize(
    ("fit", "is_offered"),
    [
        ("fit(net)", True),
        ("fit(net, data)", True),
        ("fit(net, datamodule=data)", True),
        ("fit(net, train_loader)", False),
        ("fit(net, train_dataloaders=data)", False),
    ],
)
def test_a_callback_is_offered_where_it_can_change_the_size(tmp_path, fit, is_offered):
    path = tmp_path / "train.py"
    path.write_text(f"import lightning.pytorch as pl\nbatch_size = 4\npl.Trainer().{fit}\n")

    with pytest.raises(UserInputError) as raised:
        starter.from_script(path)

    assert ("MicroBatchSizeFinder" in raised.value.hint) is is_offered


@pytest.mark.parametrize("text", ["def", "x = (" * 500, "\0"])
def test_a_script_that_is_not_python_is_one_error(tmp_path, text):
    path = Path(tmp_path / "train.py")
    path.write_text(text)
    with pytest.raises(UserInputError, match="is not Python"):
        starter.from_script(path)
