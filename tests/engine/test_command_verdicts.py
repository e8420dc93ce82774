"""Commands that fail before a batch, hide a refusal of memory, ignore the size, or are ended by a signal."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from bexplore.api import explore
from bexplore.command import watch
from bexplore.command.runner import CommandRunner, CommandSettings
from bexplore.config.command import Command
from bexplore.config.load import load_config
from bexplore.errors import UserProgramError
from bexplore.exploration.base import ExploreOptions
from bexplore.measurement.probe import Outcome, Purpose
from bexplore.search.result import ProbeFinished
from tests.engine.command_starts import search_probe_of

PROGRAM = """
import sys
import torch
size = int(sys.argv[1])
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn({samples}, 4)), {size}, shuffle=True)
model = torch.nn.Sequential(*{layers})
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
{before}
for epoch in range(100000):
    for (batch,) in loader:
        {step}
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
LAYERS = "[torch.nn.Linear(4, 4)]"
REFUSED = "torch.empty(2**60, dtype=torch.uint8)"


def program(folder: Path, *, size="size", before="", step="pass", samples="8192", layers=LAYERS) -> tuple[str, ...]:
    """Write a training script; return the command that starts it."""
    path = folder / "train.py"
    path.write_text(PROGRAM.format(size=size, before=before, step=step, samples=samples, layers=layers))
    return (sys.executable, str(path), "{micro_batch_size}")


@pytest.fixture(autouse=True)
def short_starts(monkeypatch, tmp_path):
    for name in ("LEAST_TIMED_S", "MOST_TIMED_S"):
        monkeypatch.setattr(watch, name, 0.2)
    monkeypatch.setattr(watch, "AFTER_ERROR_S", 0.5)
    monkeypatch.chdir(tmp_path)


def runner_of(argv: tuple[str, ...], folder: Path, *, candidates=tuple(range(1, 65))) -> CommandRunner:
    command = Command(argv=argv, env={"OMP_NUM_THREADS": "1"}, writes_are_fine=True)
    return CommandRunner(command, CommandSettings(run_dir=folder / "run", sizes_per_start=8, candidates=candidates))


def test_a_start_saves_over_no_file_that_was_there_before(tmp_path):
    mine, made = tmp_path / "mine.pt", tmp_path / "made.pt"
    mine.write_text("a model of days")
    argv = (*program(tmp_path, step="torch.save(model, 'mine.pt'), torch.save(model, 'made.pt')"), "{output_dir}")
    runner = CommandRunner(Command(argv=argv), CommandSettings(run_dir=tmp_path / "run"))

    first, second = (runner(search_probe_of(size)) for size in (4, 8))

    assert first.is_measured and second.is_measured
    assert mine.read_text() == "a model of days" and made.stat().st_size > 100
    assert [one for one in first.warnings if one.startswith(f"{mine} was there before, and no start saves over it")]


def num_starts(folder: Path) -> int:
    return sum(1 for path in (folder / "run" / "probes").iterdir() if path.is_dir())


@pytest.mark.parametrize(
    ("before", "most", "words"),
    [
        ("import a_module_that_is_not_there", 1, "ModuleNotFoundError"),
        ("torch.load('weights.pt')", 1, "weights.pt"),
        ("torch.optim.Adamant", 1, "AttributeError"),
        ("undefined", 1, "NameError"),
        ("raise ValueError('unknown schedule: cosin')", 2, "cosin"),
        ("import argparse; argparse.ArgumentParser().parse_args(['--adam'])", 2, "unrecognized arguments: --adam"),
        ("sys.exit('no data set')", 2, "no data set"),
        ("raise RuntimeError('the queue is not empty')", 2, "the queue is not empty"),
    ],
)
@pytest.mark.parametrize("purpose", [Purpose.BASE, Purpose.SEARCH])
def test_a_bug_before_the_first_batch_costs_two_starts_at_most(tmp_path, before, most, words, purpose):
    runner = runner_of(program(tmp_path, before=before), tmp_path)

    with pytest.raises(UserProgramError, match="before its first batch, whatever the size") as raised:
        runner(search_probe_of(1, purpose=purpose))

    assert words in raised.value.message
    assert "train.py" in raised.value.hint and "bexplore probe" not in raised.value.hint
    assert num_starts(tmp_path) <= most


@pytest.mark.parametrize(
    "asks",
    [
        "_, width = os.popen('stty size').read().split()",  # the progress bar of many trainings
        "width = os.get_terminal_size()",
        "__import__('termios').tcgetattr(0)",
    ],
)
def test_a_command_that_asks_for_a_terminal_is_given_the_line_that_has_one(tmp_path, asks):
    runner = runner_of(program(tmp_path, before=f"import os; {asks}"), tmp_path)

    with pytest.raises(UserProgramError, match="before its first batch") as raised:
        runner(search_probe_of(1, purpose=Purpose.BASE))

    assert "asks for a terminal" in raised.value.hint
    assert "script -qec '" in raised.value.hint and "{micro_batch_size}' /dev/null" in raised.value.hint
    assert num_starts(tmp_path) == 1


SPAWNED = """
import sys
import torch

def train(rank, size):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with torch.no_grad():
        for batch in torch.utils.data.DataLoader(torch.randn(8, 4), size):
            model(batch)
    for number, batch in enumerate(torch.utils.data.DataLoader(torch.randn(4096, 4), size)):
        if number == int(sys.argv[2]):
            raise ValueError("the labels differ")
        model(batch).square().mean().backward()
        optimizer.step()

if __name__ == "__main__":
    torch.multiprocessing.spawn(train, (int(sys.argv[1]),), nprocs=1)
"""


@pytest.mark.parametrize("batch", ["0", "3"])
def test_a_spawned_process_that_fails_at_a_batch_is_told_by_its_own_error(tmp_path, batch):
    (tmp_path / "train.py").write_text(SPAWNED)
    runner = runner_of((sys.executable, str(tmp_path / "train.py"), "{micro_batch_size}", batch), tmp_path)

    observation = runner(search_probe_of(1))

    assert (observation.outcome, observation.reason) == (Outcome.CRASHED, "ValueError: the labels differ")


WAITING = """
import multiprocessing
import torch

def train(results):
    raise TypeError("of the training process")

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    context.Process(target=train, args=(results,)).start()
    results.get()
"""


def test_a_process_that_fails_while_the_program_waits_for_it_ends_the_start(tmp_path):
    (tmp_path / "train.py").write_text(WAITING)
    runner = runner_of((sys.executable, str(tmp_path / "train.py"), "{micro_batch_size}"), tmp_path)

    found = runner.run(search_probe_of(4), None)

    assert (found.outcome, found.reason) == (Outcome.CRASHED, "TypeError: of the training process")


def test_a_training_that_wants_a_new_output_folder_is_told_how_to_get_one_each_start(tmp_path):
    runner = runner_of(program(tmp_path, before="import os; os.mkdir('out')"), tmp_path)
    assert runner(search_probe_of(1)).is_measured
    runner.close()

    with pytest.raises(UserProgramError, match="an output folder that is not there yet: FileExistsError") as raised:
        runner.run(search_probe_of(3), None)

    assert "write {output_dir}/run where it takes its output folder" in raised.value.hint


def test_a_training_that_refuses_the_folder_of_its_start_may_have_one_within_it(tmp_path):
    words = program(tmp_path, before="import os; os.mkdir(sys.argv[2])")

    with pytest.raises(UserProgramError, match="wants an output folder that is not there yet") as raised:
        runner_of((*words, "{output_dir}"), tmp_path)(search_probe_of(1))

    assert raised.value.hint == "write {output_dir}/run in place of {output_dir}"
    runner = runner_of((*words, "{output_dir}/run"), tmp_path)
    try:
        assert runner(search_probe_of(1)).is_measured
    finally:
        runner.close()


def test_a_check_of_the_size_before_the_first_batch_is_of_that_size_alone(tmp_path):
    before = "if size % 8: raise ValueError('the batch size must be divisible by 8')"
    runner = runner_of(program(tmp_path, before=before), tmp_path)
    try:
        assert runner(search_probe_of(1)).is_measured  # cut from batches of 64
        runner.close()
        assert runner.run(search_probe_of(3), None).outcome is Outcome.CRASHED
    finally:
        runner.close()


def test_a_smallest_size_that_the_program_refuses_is_not_cut_from_a_larger_one(tmp_path):
    before = "if size % 8: raise ValueError('the batch size must be divisible by 8')"
    runner = runner_of(program(tmp_path, before=before), tmp_path)
    try:
        assert runner(search_probe_of(1, purpose=Purpose.BASE)).outcome is Outcome.CRASHED
        assert runner(search_probe_of(8)).is_measured
    finally:
        runner.close()


FIXED_BATCH = """
import sys
import torch

size, batch = int(sys.argv[1]), int(sys.argv[2])
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
while True:
    for number, rows in enumerate(torch.utils.data.DataLoader(torch.randn(4096, 4), size)):
        model(rows).square().mean().backward()
        if (number + 1) % max(batch // size, 1) == 0:
            optimizer.step()
            optimizer.zero_grad()
"""


@pytest.mark.parametrize(("batch", "is_shared"), [(1, True), (32, False), (512, False)])
def test_a_start_is_shared_only_where_steps_do_not_follow_the_size(tmp_path, batch, is_shared):
    (tmp_path / "train.py").write_text(FIXED_BATCH)
    runner = runner_of((sys.executable, str(tmp_path / "train.py"), "{micro_batch_size}", str(batch)), tmp_path)
    try:
        base = runner(search_probe_of(1, purpose=Purpose.BASE))
        further = runner(search_probe_of(8, number=1))
    finally:
        runner.close()

    assert [one.details["passes_per_step"] for one in (base, further)] == [max(batch // size, 1) for size in (1, 8)]
    assert runner.shares_starts is is_shared


ODD_SAMPLE = """
import os
import sys
import torch

class Pictures(torch.utils.data.Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, place):
        if size == 8 and place == 3 and not os.path.exists("tried"):
            open("tried", "w").close()
            raise ValueError("bits must be between or equal to 1 and 8")
        return torch.ones(4)

size = int(sys.argv[1])
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for epoch in range(100000):
    for batch in torch.utils.data.DataLoader(Pictures(), size):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_start_that_fails_at_a_sample_by_chance_is_repeated(tmp_path):
    (tmp_path / "train.py").write_text(ODD_SAMPLE)
    runner = runner_of((sys.executable, str(tmp_path / "train.py"), "{micro_batch_size}"), tmp_path)

    first, second = (runner.run(search_probe_of(size, number=number), None) for number, size in enumerate((4, 8)))

    assert first.is_measured and second.is_measured and num_starts(tmp_path) == 3
    assert second.warnings[0].endswith("ValueError: bits must be between or equal to 1 and 8")


EVALUATING = """
import sys
import torch

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
loader = torch.utils.data.DataLoader(torch.randn(64, 4), int(sys.argv[1]), shuffle=True)
while True:
    for batch in loader:
        model(batch).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    for batch in loader:
        with torch.no_grad():
            model(batch)
"""


@pytest.mark.parametrize("size", [2, 8, 32])
def test_an_evaluation_of_the_training_s_own_loader_makes_no_micro_batches(tmp_path, size):
    (tmp_path / "train.py").write_text(EVALUATING)
    runner = runner_of((sys.executable, str(tmp_path / "train.py"), "{micro_batch_size}"), tmp_path)

    found = runner.run(search_probe_of(size), None)

    assert (found.details["micro_batches_per_step"], found.details["passes_per_step"]) == (1, 1)


RISING = """
import sys
import torch

batch_size, nbs, nw, last, accumulate = int(sys.argv[1]), 64, 10**9, -1, 1
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
loader = torch.utils.data.DataLoader(torch.randn(65536, 4), batch_size, shuffle=True)
for ni, batch in enumerate(loader):
    if ni <= nw:
        accumulate = max(1, round(1 + (nbs / batch_size - 1) * ni / nw))
    model(batch).square().mean().backward()
    if ni - last >= accumulate:
        optimizer.step()
        optimizer.zero_grad()
        last = ni
"""


def test_steps_in_a_warmup_of_the_accumulation_are_told_as_those_behind_it(tmp_path):
    (tmp_path / "train.py").write_text(RISING)
    runner = runner_of((sys.executable, str(tmp_path / "train.py"), "{micro_batch_size}"), tmp_path)
    try:
        base = runner(search_probe_of(1, purpose=Purpose.BASE))
        further = runner(search_probe_of(16, number=1))
    finally:
        runner.close()

    assert [one.details["micro_batches_per_step"] for one in (base, further)] == [64, 4]
    assert not runner.shares_starts
    assert all("grows in a warmup" in one.warnings[-1] for one in (base, further))


@pytest.mark.parametrize(
    "step",
    [
        f"""try: {REFUSED}
        except RuntimeError: raise ValueError("step failed")""",
        f"""try: {REFUSED}
        except RuntimeError as error: raise KeyError("step") from error""",
        f"""try: {REFUSED}
        except RuntimeError: raise ValueError("step failed") from None""",
        f"""try: {REFUSED}
        except RuntimeError: sys.exit(1)""",
        f"""try: {REFUSED}
        except RuntimeError as error: print("step failed:", error, flush=True); import os; os._exit(1)""",
    ],
)
def test_a_refusal_that_the_program_disguises_is_out_of_memory(tmp_path, step):
    observation = runner_of(program(tmp_path, step=step), tmp_path).run(search_probe_of(4), None)

    assert observation.outcome is Outcome.OUT_OF_MEMORY


def test_a_crash_beside_advice_about_memory_is_a_crash(tmp_path):
    step = "print('if you see CUDA out of memory, reduce the batch size', flush=True); raise ValueError('a bug')"
    observation = runner_of(program(tmp_path, step=step), tmp_path).run(search_probe_of(4), None)

    assert (observation.outcome, observation.details) == (Outcome.CRASHED, {})


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL", "SIGINT", "SIGSEGV"])
def test_a_signal_is_told_with_the_crash_of_a_start(tmp_path, name):
    step = f"import os; os.kill(os.getpid(), {getattr(signal, name).value})"
    observation = runner_of(program(tmp_path, step=step), tmp_path).run(search_probe_of(4), None)

    assert observation.outcome is Outcome.CRASHED
    assert observation.details["ended_by"] == name


def explored(argv: tuple[str, ...], **settings):
    """Explore a command; return the events."""
    given = {"max": 64, "max_probes": 4, "effort": "quick", "writes_are_fine": True, "command": list(argv)} | settings
    config = load_config(None, overrides=[f"explore.{name}={json.dumps(value)}" for name, value in given.items()])
    return list(explore(config, ExploreOptions(fresh=True)))


@pytest.mark.parametrize("size", ["16", "64", "2 * size", "max(1, size // 4)"])
def test_a_command_that_trains_with_another_size_gives_no_answer(tmp_path, size):
    with pytest.raises(UserProgramError, match="contradicted: micro-batches of"):
        explored(program(tmp_path, size=size))


def test_sizes_that_a_command_rounds_are_left_out_and_the_others_answer(tmp_path):
    (tmp_path / "train.py").write_text("""
import sys, torch
size = int(sys.argv[1]) // 8 * 8
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(400):
    model(torch.randn(size, 4)).sum().backward()
    optimizer.step()
""")
    argv = (sys.executable, "train.py", "{micro_batch_size}")
    events = explored(argv, candidates=[8, 49, 50, 64, 250, 256], max_probes=6)

    probes = [event.observation for event in events if isinstance(event, ProbeFinished)]
    rounded = {one.micro_batch_size: one for one in probes if not one.is_measured}
    assert rounded and set(rounded) <= {49, 50, 250}
    assert all(one.outcome is Outcome.CRASHED and "the command rounds it" in one.reason for one in rounded.values())
    assert events[-1].result.micro_batch_size in (8, 64, 256)


def test_one_signal_from_outside_leaves_the_size(tmp_path):
    mark = tmp_path / "struck"
    before = f"""import os, signal
if not os.path.exists({str(mark)!r}):
    open({str(mark)!r}, "w").close()
    os.kill(os.getpid(), signal.SIGTERM)"""
    events = explored(program(tmp_path, before=before), candidates=[4])

    assert events[-1].result.micro_batch_size == 4
    assert mark.exists()


def test_a_command_s_result_says_that_gradients_were_not_compared(tmp_path):
    layers = "[torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)]"
    events = explored(program(tmp_path, samples="800001", layers=layers), candidates=[8])
    result, measured = events[-1].result, [e.observation for e in events if isinstance(e, ProbeFinished)][-1]

    assert measured.details["batch_coupled"] == ["BatchNorm1d"]
    assert "were not compared" in result.checks.gradient_equivalence["message"]
    assert "BatchNorm1d" in result.checks.gradient_equivalence["message"]
    assert any("the last batch of each epoch has 1 sample at size 8" in text for text in result.warnings)


def test_a_last_batch_of_one_sample_is_none_to_warn_of_where_size_1_was_measured(tmp_path):
    layers = "[torch.nn.Unflatten(1, (1, 4)), torch.nn.BatchNorm1d(1), torch.nn.Flatten(), torch.nn.Linear(4, 4)]"
    events = explored(program(tmp_path, samples="800001", layers=layers), candidates=[1, 8])
    result, measured = events[-1].result, [e.observation for e in events if isinstance(e, ProbeFinished)]

    assert {one.details["last_batch"] for one in measured if one.micro_batch_size == 8} == {1}
    assert not any("the last batch of each epoch" in text for text in result.warnings)


READ_AHEAD = """
import sys, time
import torch

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return {num_samples}

    def __getitems__(self, numbers):
        time.sleep({seconds})
        return [torch.zeros(4) for _ in numbers]

loader = torch.utils.data.DataLoader(Data(), int(sys.argv[1]), num_workers=2, prefetch_factor=8)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for number, batch in enumerate(loader):
    time.sleep(3.0 if number == 0 else 0.001)
    model(batch).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("seconds", "num_samples", "is_told"),
    [
        pytest.param(0.1, 100000, True, id="workers that are slower"),
        pytest.param(0.0, 100000, False, id="workers that keep up"),
        pytest.param(0.0, 40, False, id="workers that have made all of an epoch"),
    ],
)
def test_a_loader_that_is_slower_than_the_steps_is_told(tmp_path, seconds, num_samples, is_told):
    (tmp_path / "train.py").write_text(READ_AHEAD.format(seconds=seconds, num_samples=num_samples))
    runner = runner_of((sys.executable, str(tmp_path / "train.py"), "{micro_batch_size}"), tmp_path)

    observation = runner(search_probe_of(4))

    assert observation.is_measured, observation.reason
    told = [text for text in observation.warnings if text.startswith("the loader is slower than the step")]
    assert bool(told) == is_told


SLOW_SAMPLES = """
import sys, time
import torch

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 100000

    def __getitem__(self, number):
        time.sleep({of_sample})
        return torch.zeros(4)

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
for batch in torch.utils.data.DataLoader(Data(), int(sys.argv[1]), num_workers={num_workers}, prefetch_factor={ahead}):
    time.sleep({of_step})
    model(batch).square().mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("num_workers", "ahead", "of_sample", "of_step", "is_most"),
    [
        pytest.param(0, None, 0.05, 0.0, True, id="in the process that trains"),
        pytest.param(1, 1, 0.05, 0.0, True, id="by a worker"),
        pytest.param(0, None, 0.0, 0.2, False, id="of a longer step"),
    ],
)
def test_the_share_of_a_step_that_reads_its_batches_is_seen(tmp_path, num_workers, ahead, of_sample, of_step, is_most):
    values = {"num_workers": num_workers, "ahead": ahead, "of_sample": of_sample, "of_step": of_step}
    (tmp_path / "train.py").write_text(SLOW_SAMPLES.format(**values))
    runner = runner_of((sys.executable, str(tmp_path / "train.py"), "{micro_batch_size}"), tmp_path)

    observation = runner(search_probe_of(4))

    assert observation.is_measured, observation.reason
    assert (observation.details["share_of_reading"] > 0.5) == is_most
    assert observation.details["num_loader_workers"] == num_workers
