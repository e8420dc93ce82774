"""`explore.lengths: {from: loader}`: the user's own loader is read in a worker, and its errors are the user's."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from bexplore.config.load import load_config
from bexplore.errors import UserInputError, UserProgramError
from bexplore.exploration.setup import add_loader_lengths
from bexplore.job.lengths import Collation

CODE = """
    import torch
    from torch.utils.data import DataLoader, Dataset

    class Sentences(Dataset):
        def __len__(self): return 30
        def __getitem__(self, index): return torch.arange(5 + index)

    class WithLengths(Sentences):
        lengths = [3, 4, 4, 90]
        def __getitem__(self, index): raise AssertionError("it is not read")

    def model(): return torch.nn.Linear(8, 8)
    def batch(micro_batch_size, sequence_length=100): return torch.randn(micro_batch_size, sequence_length, 8)
    def sentences(micro_batch_size): return DataLoader(Sentences(), batch_size=micro_batch_size)
    def known(micro_batch_size): return DataLoader(WithLengths(), batch_size=micro_batch_size)
    def masked(micro_batch_size): return [{"attention_mask": torch.tensor([[1, 1, 1, 0]])}]
    def flat(micro_batch_size): return [torch.zeros(1)]
    def broken(micro_batch_size): raise RuntimeError("no shard 7")
"""


def config_of(folder: Path, loader: str, *, key: str = "micro_batch_size", **lengths):
    (folder / "own_data.py").write_text(textwrap.dedent(CODE))
    given = "".join(f", {name}: {value}" for name, value in lengths.items())
    path = folder / "job.yaml"
    path.write_text(
        f"train_input: {{{key}: explore}}\n"
        "explore:\n"
        f"  lengths: {{from: loader{given}}}\n"
        "  workload: {model: 'own_data:model', batch: 'own_data:batch', "
        f"loader: 'own_data:{loader}'}}\n"
    )
    return load_config(path)


@pytest.mark.parametrize(
    ("loader", "values"), [("sentences", tuple(range(5, 35))), ("known", (3, 4, 90)), ("masked", (3,))]
)
def test_lengths_are_those_of_single_samples_or_of_the_data_set(tmp_path, loader, values):
    job = add_loader_lengths(config_of(tmp_path, loader)).job

    assert job.lengths is not None
    assert job.lengths.values == values
    assert job.sequence_length == values[-1]


def test_no_more_samples_are_read_than_the_file_says(tmp_path):
    job = add_loader_lengths(config_of(tmp_path, "sentences", num_samples=10)).job

    assert job.lengths is not None
    assert job.lengths.values == tuple(range(5, 15))


def test_a_micro_batch_of_a_number_of_tokens_has_them_too(tmp_path):
    config = add_loader_lengths(config_of(tmp_path, "sentences", key="micro_batch_tokens"))

    assert config.job.lengths is not None
    assert config.job.lengths.collation is Collation.TOKENS
    assert config.size_unit == 34


def test_a_loader_whose_batches_show_no_length_is_an_error_with_a_hint(tmp_path):
    with pytest.raises(UserInputError, match=r"shapes \[\(1,\)\]"):
        add_loader_lengths(config_of(tmp_path, "flat"))


def test_an_error_of_the_loader_is_the_users_own(tmp_path):
    with pytest.raises(UserProgramError, match="no shard 7"):
        add_loader_lengths(config_of(tmp_path, "broken"))
