"""The observer inside a training: the steps that it counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bexplore.command.start import ProbeFolder
from bexplore.config.command import Command
from bexplore.errors import UserInputError

TRAINING = """
import torch
model = torch.nn.Linear(8, 8)
optimizer = {optimizer}
def backward():
    optimizer.zero_grad()
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    return loss
for _ in range(20):
    {step}
"""
OWN_OPTIMIZER = """
import torch
model = torch.nn.Linear(8, 8)
for _ in range(20):
    for _ in range(2):
        model(torch.randn(4, 8)).square().mean().backward()
    for parameter in model.parameters():
        parameter.data.add_(parameter.grad, alpha=-0.1)
        {clear}
"""
PARTS_OF_A_MODEL = """
import torch
class Actor(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = torch.nn.Linear(8, 8), torch.nn.Linear(8, 2)
    def act(self, states):
        return self.head(self.body(states))
actor = Actor()
optimizer = torch.optim.SGD(actor.parameters(), lr=0.1)
for _ in range(20):
    optimizer.zero_grad()
    with torch.no_grad():
        actor.act(torch.randn(1, 8))
    actor.act(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
"""
STEPS_OF_ONE_BATCH = """
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, in torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(400, 8)), {rows}):
    for k in range(2):
        optimizer.zero_grad()
        model({part}).square().mean().backward()
        optimizer.step()
"""
BATCHES_WITHOUT_SAMPLE_DIMENSION = """
import torch
class Graphs:
    def __init__(self, graphs):
        self.store = type("Store", (), {{}})()
        self.store.nodes = torch.cat(graphs)
class Set(torch.utils.data.Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, index):
        return torch.randn(index % 5 + 3, 8)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = torch.utils.data.DataLoader(Set(), batch_size=4, collate_fn={collate}, num_workers={num_workers})
for batch in loader:
    nodes = batch.store.nodes if isinstance(batch, Graphs) else torch.cat(batch)
    optimizer.zero_grad()
    model(nodes).square().mean().backward()
    optimizer.step()
"""
TENSORS_OF_THEIR_OWN_CLASS = """
import torch
class Scan(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.Tensor.__getitem__:
            raise ValueError("a part of a scan has no place in space")
        return super().__torch_function__(func, types, args, kwargs or {})
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def collate(rows):
    return torch.stack(rows).as_subclass(Scan)
for batch in torch.utils.data.DataLoader(torch.randn(80, 8), 4, collate_fn=collate):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
"""
WITH_EVALUATION = """
import time
import torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
training, held_out = (TensorDataset(torch.randn(number, 8)) for number in (12, 30))
while True:
    for (batch,) in DataLoader(training, batch_size=4):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    with {context}:
        for (batch,) in DataLoader(held_out, batch_size=5):
            model(batch)
            time.sleep(0.05)
"""
EVALUATION_FIRST = """
import torch
from torch.utils.data import DataLoader

model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
tests, data = DataLoader(torch.zeros(20, 3), batch_size=4), DataLoader(torch.zeros(12, 3), batch_size=4)
for _ in range(100):
    with {context}:
        for inputs in tests:
            model(inputs)
    for inputs in data:
        model(inputs).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
FROZEN = """
import gc
import torch

model = torch.nn.Linear(512, 512)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(100):
    if step in (0, 1):
        gc.collect()
        gc.freeze()
        gc.disable()
    model(torch.zeros(4, 512)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
READING_AHEAD = """
import torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
training, held_out = (TensorDataset(torch.randn(number, 8)) for number in (8, 30))
def ahead(loader):
    batches = iter(loader)
    (batch,) = next(batches)
    for (following,) in batches:
        yield batch
        batch = following
    yield batch
while True:
    for batch in ahead(DataLoader(training, batch_size=4)):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    for (batch,) in DataLoader(held_out, batch_size=5):
        with {context}:
            model(batch)
"""
STREAMS = """
import torch
from torch.utils.data import DataLoader, IterableDataset
class Stream(IterableDataset):
    def __iter__(self):
        yield from torch.randn(8, 8)
class LongStream(IterableDataset):
    def __iter__(self):
        yield from torch.randn(16, 8)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kept = []
while True:
    kept.append(LongStream() if len(kept) % 2 else Stream())
    for batch in DataLoader(kept[-1], batch_size=4):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    with torch.no_grad():
        for batch in DataLoader(kept[0], batch_size=2):
            model(batch)
"""
WITHOUT_LOADER = """
import time
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
average = torch.zeros(8, 8)
while True:
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            average.lerp_(model.weight, 0.1)
    with torch.no_grad():
        time.sleep(0.5)
"""
UPDATES_WITHOUT_GRADIENTS = """
import itertools
import time
import torch
class Descent(torch.optim.SGD):
    @torch.no_grad()
    def step(self):
        time.sleep(0.4 if next(numbers) == 6 else 0.02)
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.sub_(0.1 * parameter.grad)
numbers = itertools.count()
model = torch.nn.Linear(8, 8)
optimizer = Descent(model.parameters(), lr=0.1)
while True:
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
"""
MIXTURE = """
import itertools
import time
import torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
often, seldom = (itertools.cycle(DataLoader(TensorDataset(torch.randn(12, 8)), batch_size=4)) for _ in range(2))
for step in itertools.count():
    (batch,) = next(seldom if step % 3 == 2 else often)
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
    time.sleep(0.01)
"""
GRADIENTS_BY_HAND = """
import itertools
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
class Repeat:
    def __init__(self, sampler):
        self.sampler = sampler
    def __iter__(self):
        return itertools.chain.from_iterable(itertools.repeat(self.sampler))
loader = DataLoader(torch.randn(40, 8), batch_size=4)
object.__setattr__(loader, "batch_sampler", Repeat(loader.batch_sampler))
for batch in itertools.islice(loader, 100):
    gradients = torch.autograd.grad(model(batch).square().mean(), list(model.parameters()))
    for parameter, gradient in zip(model.parameters(), gradients):
        parameter.grad = gradient
    optimizer.step()
"""
# Seconds pass by the observer's clock alone. Most of a step is in its forward pass, its backward pass or its update.
SLOW_STEPS = """
import copy, sys, time
real, passed = time.perf_counter, [0.0]
time.perf_counter = lambda: real() + passed[0]
import torch
from torch.utils.data import DataLoader, TensorDataset
seconds, place, parts = float(sys.argv[1]), sys.argv[2], sys.argv[3:]
def wait(where):
    passed[0] += seconds if where == place else 0.01
class Optimizer(torch.optim.AdamW):
    def step(self, closure=None):
        wait("update")
        return super().step(closure)
model = torch.nn.Linear(8, 3)
average, optimizer = copy.deepcopy(model), Optimizer(model.parameters())
scaler = torch.amp.GradScaler("cpu", enabled="scaler" in parts)
accumulation = 3 if "accumulation" in parts else 1
logged, passes = [], 0
for epoch in range(12):
    for x, y in DataLoader(TensorDataset(torch.randn(20, 8), torch.randint(0, 3, (20,))), 4):
        wait("forward")
        output = model(x)
        loss = torch.nn.functional.cross_entropy(output, y)
        if "metrics" in parts:
            with torch.no_grad():
                logged.append((output.argmax(1) == y).float().mean().item())
        output.register_hook(lambda gradient: wait("backward"))
        scaler.scale(loss / accumulation).backward()
        passes += 1
        if passes % accumulation:
            continue
        scaler.unscale_(optimizer)
        if "clip" in parts:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if "ema" in parts:
            with torch.no_grad():
                for one, other in zip(average.parameters(), model.parameters()):
                    one.lerp_(other, 0.1)
        if "callback" in parts:
            with torch.inference_mode():
                logged.append(sum(p.norm().item() for p in model.parameters()))
"""
PARTS = ("clip", "ema", "metrics", "callback", "scaler", "accumulation")
SIGNS = """
import glob
import time
import torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step():
    model(torch.randn(4, 64)).square().mean().backward()
    optimizer.step()
for _ in range(3):
    step()
time.sleep(2.5)  # signs of what a first update loads have been given by then
step()  # which writes those that were given so soon after a step that they were not written
with open({before!r}, "w") as file:
    file.write("".join(open(path).read() for path in glob.glob({reports!r} + "/steps-*")))
ends_s = time.monotonic() + 4.0
while time.monotonic() < ends_s:
    {what}
"""
SAVING = """
import time
import torch
class Slow:
    def __reduce__(self):
        time.sleep(1.0)
        return Slow, ()
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    if step == 4:
        torch.save(Slow(), "/dev/null")
"""
TRAININGS = {
    "accumulation": ("torch.optim.AdamW(model.parameters())", "backward(); backward(); optimizer.step()", 2),
    "closures": ("torch.optim.LBFGS(model.parameters(), max_iter=3, tolerance_grad=0)", "optimizer.step(backward)", 3),
}


SEVERAL_DATA_SETS = """
import torch
from torch.utils.data import DataLoader, TensorDataset

def load(rows):
    return DataLoader(TensorDataset(torch.randn(400, 8)), batch_size=rows)

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
others = iter(load({rows_of_other}))
for (x,) in load({rows}):
    (other,) = next(others)
    loss = model({inputs}).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""

# The end of an epoch comes in both loaders at once, or amid the other's.
ONE_DATA_SET_TWICE = """
import torch
from torch.utils.data import DataLoader, TensorDataset

samples = TensorDataset(torch.randn(12, 8))
def load(rows):
    while True:
        yield from DataLoader(samples, batch_size=rows, num_workers={num_workers})

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,), (other,) in zip(load({rows}), load({rows_of_other})):
    loss = model({inputs}).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""

WITHOUT_TENSORS = """
import numpy as np
import torch

class Embedded(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(10, 2)

    def forward(self, words):
        return self.embedding(torch.as_tensor([[int(word) for word in line] for line in words])).mean()

model = Embedded()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(400):
    loss = model({batch})
    optimizer.zero_grad(); loss.backward(); optimizer.step()
"""


@pytest.fixture
def record_of(tmp_path: Path):
    """Runs a script under the observer and returns the record of its rank."""

    def run(
        script: str,
        env: dict[str, str] | None = None,
        *,
        max_steps: int = 8,
        words: tuple[str, ...] = (),
        told_step: int | None = None,
        profiles_memory: bool = False,
    ) -> dict:
        command = Command(argv=(sys.executable, "-c", script, *words), env=env or {})
        folder = ProbeFolder(path=tmp_path / "probe")
        settings = {"micro_batch_size": 4, "accumulation": 1, "max_steps": max_steps, "memory_step": 1}
        settings |= {"profile_memory": profiles_memory, "memory_limit_bytes": None}
        values = command.values(micro_batch_size=4, accumulation=1, num_replicas=1, folder=folder.path)
        variables = folder.write(command, values, settings)
        folder.release()
        if told_step is not None:
            folder.stop_after(told_step)
        subprocess.run(command.argv, env=os.environ | variables, check=True, timeout=120)
        return json.loads(next(folder.reports.glob("rank-*.json")).read_text())

    return run


@pytest.mark.parametrize("name", TRAININGS)
def test_every_step_is_counted_once_from_the_first_on(record_of, name):
    optimizer, step, num_passes = TRAININGS[name]
    record = record_of(TRAINING.format(optimizer=optimizer, step=step))
    assert [step["num_passes"] for step in record["steps"]] == [num_passes] * 8
    assert [step["num_updates"] for step in record["steps"]] == [1] * 8


@pytest.mark.parametrize(("seconds", "place"), [("1.2", "forward"), ("3", "backward"), ("20", "update")])
def test_a_slow_training_learns_its_last_step_beside_evaluations(record_of, seconds, place):
    record = record_of(SLOW_STEPS, max_steps=10**6, told_step=9, words=(seconds, place, *PARTS))

    assert (record["outcome"], len(record["steps"])) == ("observed", 9)


@pytest.mark.parametrize("part", PARTS)
def test_a_slow_training_with_a_part_that_many_have_learns_its_last_step(record_of, part):
    record = record_of(SLOW_STEPS, max_steps=10**6, told_step=9, words=("1.2", "forward", part))

    assert (record["outcome"], len(record["steps"])) == ("observed", 9)


@pytest.mark.parametrize(
    ("what", "lives"), [("torch.randn(256, 256) @ torch.randn(256, 256)", True), ("time.sleep(0.5)", False)]
)
def test_a_process_that_works_gives_signs_of_life_and_one_asleep_none(record_of, tmp_path, what, lives):
    reports, before = tmp_path / "probe" / "reports", tmp_path / "before"
    record_of(SIGNS.format(what=what, reports=str(reports), before=str(before)), max_steps=100)

    signs_before, signs = (
        int(text.split()[3]) for text in (before.read_text(), next(reports.glob("steps-*")).read_text())
    )
    assert (signs > signs_before) == lives


def test_the_seconds_of_a_checkpoint_are_not_of_its_step(record_of):
    seconds = [step["evaluation_s"] for step in record_of(SAVING)["steps"]]

    assert [second > 0.9 for second in seconds] == [False] * 5 + [True] + [False] * 2


def test_the_observer_changes_no_graphs_and_breaks_of_a_compiled_step(record_of):
    script = TRAINING.format(optimizer="torch.optim.SGD(model.parameters(), lr=0.1)", step="step()")
    compiled = "@torch.compile(backend='eager')\ndef step():\n    backward()\n    optimizer.step()\nfor _"
    script = script.replace("for _", compiled, 1)
    counted = """
counters = torch._dynamo.utils.counters
print(counters["stats"]["unique_graphs"], sum(counters["graph_break"].values()))
"""
    alone = subprocess.run([sys.executable, "-c", script + counted], check=True, capture_output=True, text=True)

    compiler = record_of(script)["compiler"]

    assert [compiler["num_graphs"], compiler["num_graph_breaks"]] == [int(word) for word in alone.stdout.split()]


def test_the_python_path_of_the_commands_own_environment_stays(record_of, tmp_path):
    (tmp_path / "module_of_the_user.py").write_text("import torch\n")
    script = "import module_of_the_user\n" + TRAINING.format(
        optimizer="torch.optim.SGD(model.parameters(), lr=0.1)", step="backward(); optimizer.step()"
    )
    assert len(record_of(script, {"PYTHONPATH": str(tmp_path)})["steps"]) == 8


def test_trackers_are_off_where_only_the_python_path_was_carried(tmp_path):
    folder = ProbeFolder(path=tmp_path / "probe")
    command = Command(argv=("train",), env={"COMET_MODE": "offline"})
    values = command.values(micro_batch_size=4, accumulation=1, num_replicas=1, folder=folder.path)
    path = folder.write(command, values, {})["PYTHONPATH"]
    script = "import os; print(os.environ['WANDB_MODE'], os.environ['COMET_MODE'])"

    env = {"PYTHONPATH": path, "WANDB_MODE": "online"}
    done = subprocess.run([sys.executable, "-c", script], env=env, check=True, capture_output=True, text=True)

    assert done.stdout.split() == ["disabled", "offline"]


def test_a_folder_that_would_split_a_path_of_python_is_refused(tmp_path):
    folder = ProbeFolder(path=tmp_path / "run 12:30" / "probe")
    with pytest.raises(UserInputError, match="run 12:30/probe") as raised:
        folder.write(Command(argv=("train",)), {}, {})
    assert "model_dir" in raised.value.hint
    assert not folder.path.exists()


def test_what_the_observer_did_is_in_the_log_that_a_variable_names(record_of, tmp_path):
    script = TRAINING.format(
        optimizer="torch.optim.SGD(model.parameters(), lr=0.1)", step="backward(); optimizer.step()"
    )
    log = tmp_path / "observer.log"

    record_of(script, {"BEXPLORE_OBSERVER_LOG": str(log)})

    events = [line.split()[2] for line in log.read_text().splitlines()]
    assert events == ["attached", "first_pass", "optimizer", *["step"] * 8, "finished", "leaves"]


def test_a_report_that_cannot_be_written_does_not_reach_the_training(tmp_path):
    folder = ProbeFolder(path=tmp_path / "probe")
    command = Command(argv=("train",))
    values = command.values(micro_batch_size=4, accumulation=1, num_replicas=1, folder=folder.path)
    settings = {"micro_batch_size": 4, "accumulation": 1, "max_steps": 1000, "memory_step": 1}
    variables = folder.write(command, values, settings)
    training = TRAINING.format(optimizer="torch.optim.SGD(model.parameters(), lr=0.1)", step="backward(); break_it()")
    script = f"""
import shutil
def break_it():
    optimizer.step()
    shutil.rmtree({str(folder.reports)!r}, ignore_errors=True)
{training}
print("trained")
"""

    done = subprocess.run([sys.executable, "-c", script], env=os.environ | variables, capture_output=True, text=True)

    assert (done.returncode, done.stdout.strip()) == (0, "trained"), done.stderr


@pytest.mark.parametrize("clear", ["parameter.grad = None", "parameter.grad.zero_()"])
def test_an_update_that_writes_the_data_of_parameters_is_seen(record_of, clear):
    steps = record_of(OWN_OPTIMIZER.format(clear=clear))["steps"]

    assert [step["num_passes"] for step in steps] == [2] * 8


def test_updates_with_gradients_that_no_backward_pass_gave_are_steps(record_of):
    record = record_of(GRADIENTS_BY_HAND)

    assert [step["num_fetches"] for step in record["steps"]] == [1] * 8
    assert record["outcome"] == "observed"


def test_samples_of_an_epoch_are_those_of_a_loader_that_never_ends(record_of):
    assert record_of(GRADIENTS_BY_HAND)["num_samples"] == 40


def test_tensors_of_a_class_of_its_own_are_read_as_plain_ones(record_of):
    record = record_of(TENSORS_OF_THEIR_OWN_CLASS)

    assert record["notes"] == [] and len(record["digests"]) == 3


def test_parts_of_a_model_that_alone_are_called_show_the_samples(record_of):
    record = record_of(PARTS_OF_A_MODEL)

    assert {rows for rows, _ in record["forward_rows"]} == {4}


@pytest.mark.parametrize("context", ["torch.no_grad()", "torch.inference_mode()", "torch.enable_grad()"])
def test_batches_and_seconds_of_an_evaluation_are_not_the_training_s(record_of, context):
    record = record_of(WITH_EVALUATION.format(context=context))

    assert record["rows"].keys() == {"4"}
    assert record["num_samples"] == 12
    assert [step["num_fetches"] for step in record["steps"]] == [1] * 8
    seconds = [step["evaluation_s"] for step in record["steps"]]
    assert [second > 0.25 for second in seconds] == [False, False, False, True, False, False, True, False]


def test_what_a_program_hides_from_the_garbage_collector_is_seen(record_of):
    record = record_of(FROZEN, profiles_memory=True)

    assert {rows for rows, _ in record["forward_rows"]} == {4}
    assert record["memory"]["peak_bytes"] > 4 * 4 * 512 * 512  # weights, gradients, and two states of AdamW


@pytest.mark.parametrize("context", ["torch.no_grad()", "torch.inference_mode()", "torch.enable_grad()"])
def test_samples_of_an_epoch_are_known_where_an_evaluation_comes_first(record_of, context):
    assert record_of(EVALUATION_FIRST.format(context=context))["num_samples"] == 12


@pytest.mark.parametrize("context", ["torch.no_grad()", "torch.inference_mode()"])
def test_an_evaluation_as_frequent_as_steps_is_known_by_gradients_off(record_of, context):
    record = record_of(READING_AHEAD.format(context=context))

    assert record["rows"].keys() == {"4"}
    assert [step["num_fetches"] for step in record["steps"]] == [2, 0] * 4


def test_each_data_set_that_is_made_for_an_epoch_is_the_training_s(record_of):
    record = record_of(STREAMS, max_steps=12)

    assert record["rows"].keys() == {"4"}
    assert [step["num_fetches"] for step in record["steps"]] == [1] * 12


def test_without_a_loader_gradients_off_for_long_are_an_evaluation(record_of):
    steps = record_of(WITHOUT_LOADER)["steps"]

    assert [step["evaluation_s"] > 0.4 for step in steps] == [False, False, False, True, False, False, True, False]


def test_a_slow_update_without_gradients_is_no_evaluation(record_of):
    assert [step["evaluation_s"] for step in record_of(UPDATES_WITHOUT_GRADIENTS)["steps"]] == [0.0] * 8


def test_a_data_set_that_is_seldom_trained_with_is_no_evaluation(record_of):
    assert [step["evaluation_s"] for step in record_of(MIXTURE)["steps"]] == [0.0] * 8


@pytest.mark.parametrize(
    ("rows", "rows_of_other", "inputs"),
    [(4, 4, "x + other"), (4, 12, "x + other.mean()"), (3, 1, "torch.cat([x, other])")],
)
def test_a_step_has_one_micro_batch_however_many_data_sets_it_reads(record_of, rows, rows_of_other, inputs):
    record = record_of(SEVERAL_DATA_SETS.format(rows=rows, rows_of_other=rows_of_other, inputs=inputs))

    assert record["rows"].keys() == {"4"}
    assert [(step["num_fetches"], step["num_samples"]) for step in record["steps"]] == [(1, 4)] * 8


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    ("rows", "rows_of_other", "inputs"),
    [(4, 4, "x + other"), (4, 6, "x + other.mean()"), (2, 2, "torch.cat([x, other])")],
)
def test_a_step_has_one_micro_batch_where_two_loaders_read_one_data_set(
    record_of, rows, rows_of_other, inputs, num_workers
):
    script = ONE_DATA_SET_TWICE.format(rows=rows, rows_of_other=rows_of_other, inputs=inputs, num_workers=num_workers)

    record = record_of(script)

    assert record["rows"].keys() == {"4"}
    assert [(step["num_fetches"], step["num_samples"]) for step in record["steps"]] == [(1, 4)] * 8


@pytest.mark.parametrize(("rows", "part"), [(4, "x[2 * k : 2 * k + 2]"), (4, "x"), (8, "x[4 * k : 4 * k + 4]")])
def test_calls_of_the_model_show_what_steps_take_of_a_batch_that_serves_two(record_of, rows, part):
    record = record_of(STEPS_OF_ONE_BATCH.format(rows=rows, part=part))

    assert [step["num_fetches"] for step in record["steps"]] == [1, 0] * 4
    assert {taken for taken, _ in record["forward_rows"]} == {rows if part == "x" else rows // 2}


def test_without_a_loader_calls_of_the_model_show_each_step_s_samples(record_of):
    script = TRAINING.format(
        optimizer="torch.optim.SGD(model.parameters(), lr=0.1)", step="backward(); optimizer.step()"
    )
    alternating = script.replace("torch.randn(4, 8)", "torch.randn(next(sizes), 8)")

    record = record_of("import itertools\nsizes = itertools.cycle([4, 3])" + alternating, max_steps=16)

    assert [step["num_samples"] for step in record["steps"][6:]] == [4, 3] * 5
    assert len(record["forward_rows"]) > 10


@pytest.mark.parametrize("batch", ["np.ones((4, 3), dtype=np.int64)", "['123'] * 4"])
def test_without_a_loader_a_model_called_with_arrays_or_text_shows_the_size(record_of, batch):
    record = record_of(WITHOUT_TENSORS.format(batch=batch))

    assert {rows for rows, _ in record["forward_rows"]} == {4} and record["digests"]


@pytest.mark.parametrize(("collate", "num_workers"), [("Graphs", 0), ("list", 0), ("list", 2)])
def test_of_a_batch_without_a_dimension_of_samples_the_loaders_list_counts(record_of, collate, num_workers):
    script = BATCHES_WITHOUT_SAMPLE_DIMENSION.format(collate=collate, num_workers=num_workers)

    record = record_of(script)

    assert record["rows"].keys() == {"4"}
    assert [step["num_samples"] for step in record["steps"][1:-1]] == [4] * 6
    assert record["digests"]
