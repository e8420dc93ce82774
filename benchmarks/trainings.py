"""Trainings of other people: `BEXPLORE_TRAININGS=DIR python -m benchmarks.trainings [--only NAME ...]`.

Each program of `TRAININGS` runs unmodified at every size of its list, timed by its own optimizer steps, and then under
`bexplore explore`. The checkouts lie in DIR/src/OWNER+NAME, the Python that has their packages is
DIR/venv/bin/python, and data is made by `benchmarks/trainings_data.py`. Nothing of the programs is kept here.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import trainings_data
from benchmarks.machine_facts import machine_facts
from benchmarks.trainings_data import Maker

RESULTS = Path(__file__).parent / "results"
TIMER = Path(__file__).parent / "trainings_timer.py"
FOLDER = Path(os.environ.get("BEXPLORE_TRAININGS", "trainings")).resolve()
PYTHON = FOLDER / "venv" / "bin" / "python"
EXPLORE_LIMIT_S = 1_500.0
HAND_LIMIT_S = 300.0
MIN_STEPS, MIN_SECONDS = 4, 3.0
WITHIN = 0.05  # of the speed of the best size by hand


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A program of other people, and what is true of it.

    Attributes:
        name: Short name.
        field: Of machine learning.
        origin: Repository, `OWNER/NAME`.
        folder: Where it is started, below the checkout.
        words: Script and arguments; `{bs}` is the size, `{out}` a folder that it may write to.
        sizes: That are run by hand, and the candidates of the exploration.
        data: Makes what it reads, given the folder of the checkout.
        micro_batches: Of one optimizer step.
        path: Further folders of Python's path, below the checkout.
        env: Further variables.
        by_hand: A part of the words, and what stands there by hand, so that its long evaluations are left out.
        long_steps: Whether a step takes more than a second at the larger sizes.
        long_evaluation: What takes long between steps; empty for nothing.
    """

    name: str
    field: str
    origin: str
    words: str
    sizes: tuple[int, ...]
    data: Maker = trainings_data.nothing
    folder: str = "."
    micro_batches: float = 1.0
    path: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    by_hand: tuple[str, str] = ("", "")
    long_steps: bool = False
    long_evaluation: str = ""

    @property
    def checkout(self) -> Path:
        """The folder of its repository."""
        return FOLDER / "src" / self.origin.replace("/", "+")

    @property
    def environment(self) -> dict[str, str]:
        """Variables of each start."""
        paths = [FOLDER / "stand_in", *(self.checkout / part for part in self.path)]
        return {
            "OMP_NUM_THREADS": "1",
            "WANDB_MODE": "disabled",
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
        } | dict(self.env)

    def filled(self, size: str, out: str) -> list[str]:
        """Return script and arguments for a size."""
        return [word.replace("{bs}", size).replace("{out}", out) for word in self.words.split()]


NANO = "--device=cpu --compile=False --dtype=float32 --dataset=random --dropout=0.0 --out_dir={out}"
LTSF = (
    "run_longExp.py --is_training 1 --model_id random --model {model} --data ETTh1 --root_path ./dataset/ "
    "--data_path ETTh1.csv --enc_in 7 --dec_in 7 --c_out 7 --itr 1 --num_workers 0 --train_epochs 1000 --patience 1000 "
    "--checkpoints {out} --batch_size {bs} "
)
TRAININGS = (
    Training(
        name="nanoGPT",
        field="language model",
        origin="karpathy/nanoGPT",
        words=f"train.py {NANO} --batch_size={{bs}} --gradient_accumulation_steps=4 --block_size=64 --n_layer=4 "
        "--n_head=4 --n_embd=128 --eval_iters=60 --eval_interval=10",
        sizes=(1, 2, 4, 8),
        data=trainings_data.make_tokens,
        micro_batches=4.0,
        long_steps=True,
        by_hand=("--eval_iters=60", "--eval_iters=1"),
        long_evaluation="losses of 120 batches before the first step and every 10 steps",
    ),
    Training(
        name="minGPT chargpt",
        field="language model",
        origin="karpathy/minGPT",
        folder="projects/chargpt",
        path=(".",),
        words="chargpt.py --trainer.batch_size={bs} --model.model_type=gpt-mini --trainer.num_workers=0",
        sizes=(1, 2, 4, 8, 16),
        data=trainings_data.make_text,
        long_steps=True,
        long_evaluation="500 tokens are generated after the first step and every 500",
    ),
    Training(
        name="makemore",
        field="language model",
        origin="karpathy/makemore",
        words="makemore.py --batch-size {bs} --num-workers 0 --work-dir {out}",
        sizes=(1, 4, 16, 32, 64, 128, 256),
        data=trainings_data.make_names,
    ),
    Training(
        name="word_language_model, LSTM, own update",
        field="language model",
        origin="pytorch/examples",
        folder="word_language_model",
        words="main.py --data data/random --batch_size {bs} --bptt 24 --lr 1 --log-interval 20 --save {out}/model.pt",
        sizes=(1, 2, 4, 8, 16, 32, 64),
        data=trainings_data.make_corpus,
        env={"TIMED_BY": "clip_grad_norm_"},
    ),
    Training(
        name="word_language_model, Transformer",
        field="language model",
        origin="pytorch/examples",
        folder="word_language_model",
        words="main.py --data data/random --batch_size {bs} --bptt 24 --lr 0.001 --use-optimizer --model Transformer "
        "--save {out}/model.pt",
        sizes=(1, 2, 4, 8, 16, 32, 64),
        data=trainings_data.make_corpus,
    ),
    Training(
        name="TCN, adding problem",
        field="sequence modelling",
        origin="locuslab/TCN",
        folder="TCN/adding_problem",
        words="add_test.py --cuda --clip 1 --batch_size {bs}",
        sizes=(1, 2, 4, 8, 16, 32, 64),
    ),
    Training(
        name="Pytorch-UNet",
        field="segmentation",
        origin="milesial/Pytorch-UNet",
        words="train.py -b {bs} -s 0.5 -v 5 -e 100",
        sizes=(1, 2, 4, 8),
        data=trainings_data.make_masked_images,
        long_steps=True,
    ),
    Training(
        name="PointNet",
        field="point clouds",
        origin="yanx27/Pointnet_Pointnet2_pytorch",
        words="train_classification.py --use_cpu --num_category 10 --process_data --batch_size {bs} --log_dir random",
        sizes=(2, 4, 8, 16),
        data=trainings_data.make_point_clouds,
        long_steps=True,
    ),
    Training(
        name="ddpm-torch",
        field="diffusion",
        origin="tqch/ddpm-torch",
        words="train.py --config-path {src}/small.json --root data --num-accum 2 --batch-size {bs2} --train-device cpu "
        "--eval-device cpu --num-workers 0 --use-ema --chkpt-dir {out}/c --image-dir {out}/i",
        sizes=(1, 2, 4, 8, 16),
        data=trainings_data.make_cifar10,
        micro_batches=2.0,
        long_steps=True,
        by_hand=("small.json", "unsampled.json"),
        long_evaluation="4 pictures are sampled in 1,000 steps after each epoch, of three steps at size 16",
    ),
    Training(
        name="powerful-gnns",
        field="graphs",
        origin="weihua916/powerful-gnns",
        words="main.py --dataset RANDOM --batch_size {bs}",
        sizes=(1, 2, 4, 8, 16, 32, 64),
        data=trainings_data.make_graphs,
    ),
    Training(
        name="PyTorch Geometric, GIN",
        field="graphs",
        origin="pyg-team/pytorch_geometric",
        folder="examples",
        words="mutag_gin.py --batch_size {bs} --epochs 100000",
        sizes=(1, 4, 16, 32, 64, 128, 256),
        data=trainings_data.make_tu_graphs,
    ),
    Training(
        name="KnowledgeGraphEmbedding, RotatE",
        field="knowledge graphs",
        origin="DeepGraphLearning/KnowledgeGraphEmbedding",
        words="codes/run.py --do_train --data_path data/random --model RotatE -de -n 32 -b {bs} -d 64 -cpu 2 "
        "-save {out} --max_steps 1000000 -adv",
        sizes=(4, 8, 16, 32, 64, 128, 256),
        data=trainings_data.make_triples,
    ),
    Training(
        name="LTSF-Linear, Transformer",
        field="time series",
        origin="cure-lab/LTSF-Linear",
        words=LTSF.replace("{model}", "Transformer") + "--d_model 128 --d_ff 256 --n_heads 4 --e_layers 1 --d_layers 1",
        sizes=(1, 2, 4, 8, 16, 32),
        data=trainings_data.make_series,
    ),
    Training(
        name="CleanRL, DQN",
        field="reinforcement learning",
        origin="vwxyzjn/cleanrl",
        path=(".",),
        words="cleanrl/dqn.py --no-cuda --learning-starts 500 --total-timesteps 50000000 --batch-size {bs}",
        sizes=(16, 64, 256, 1024),
    ),
    Training(
        name="pytorch-fm, DeepFM",
        field="recommendation",
        origin="rixwew/pytorch-fm",
        path=(".",),
        words="examples/main.py --dataset_name movielens1M --dataset_path data/ratings.dat --model_name dfm "
        "--batch_size {bs} --device cpu --save_dir {out}",
        sizes=(16, 64, 256, 1024, 2048),
        data=trainings_data.make_ratings,
    ),
    Training(
        name="DLRM",
        field="recommendation",
        origin="facebookresearch/dlrm",
        words="dlrm_s_pytorch.py --mini-batch-size {bs} --num-batches 100000 --data-size 1000000 "
        "--arch-sparse-feature-size 16 --arch-embedding-size 1000-1000-1000 --arch-mlp-bot 13-64-16 "
        "--arch-mlp-top 64-1 --print-freq 100",
        sizes=(8, 32, 128, 512),
    ),
    Training(
        name="mnist",
        field="vision classification",
        origin="pytorch/examples",
        folder="mnist",
        words="main.py --no-accel --epochs 1000 --batch-size {bs}",
        sizes=(1, 2, 4, 8, 16, 32, 64),
        data=lambda folder: trainings_data.make_mnist(folder / "mnist"),
    ),
    Training(
        name="dcgan",
        field="GAN",
        origin="pytorch/examples",
        folder="dcgan",
        words="main.py --dataset fake --batchSize {bs} --imageSize 64 --ngf 24 --ndf 24 --workers 0 --niter 1000 "
        "--outf {out}",
        sizes=(1, 2, 4, 8, 16, 32),
    ),
    Training(
        name="denoising-diffusion-pytorch, Trainer",
        field="diffusion",
        origin="lucidrains/denoising-diffusion-pytorch",
        path=(".",),
        words="{here}/trainings_ddpm.py --sample-every=5 pictures {bs} {out}",
        sizes=(2, 4, 8, 16),
        data=trainings_data.make_pictures,
        micro_batches=8.0,
        long_steps=True,
        by_hand=("--sample-every=5", "--sample-every=1000"),
        long_evaluation="25 pictures are sampled every 5 steps",
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trainings", description=__doc__)
    names = [training.name for training in TRAININGS]
    parser.add_argument("--only", nargs="+", metavar="NAME", default=names, help="these alone, by a part of the name")
    parser.add_argument("--by-hand", action="store_true", help="only run the sizes by hand")
    parser.add_argument("--explored", action="store_true", help="only explore")
    options = parser.parse_args(arguments)
    for part in options.only:
        for training in (one for one in TRAININGS if part in one.name):
            new: dict[str, Any] = {"revision": _revision(training)}
            if not options.explored:
                training.data(training.checkout)
                new["by_hand"] = _by_hand(training)
            if not options.by_hand:
                new["explored"] = _explored(training)
            rows = _earlier()  # read late: the sizes by hand and the exploration may run beside each other
            row = rows["trainings"].setdefault(training.name, {})
            if "explored" in new and "explored" in row:  # an exploration that was repeated is told, too
                row.setdefault("earlier_answers", []).append(row["explored"].get("micro_batch_size"))
            if "by_hand" in new:
                new["by_hand"] = _least(row.get("by_hand", {}), new["by_hand"])
            row |= new
            row["judged"] = _judged(training, row)
            text = json.dumps(rows | {"machine": machine_facts()}, indent=1) + "\n"
            (RESULTS / "trainings.json").write_text(_without_folders(text))
            print(training.name, json.dumps(row["judged"]), flush=True)
    (RESULTS / "trainings.md").write_text(_page(_earlier()))
    return 0


def _earlier() -> dict[str, Any]:
    """Rows of an earlier run stay, so that trainings may be run one by one."""
    path = RESULTS / "trainings.json"
    return json.loads(path.read_text()) if path.exists() else {"trainings": {}}


def _without_folders(text: str) -> str:
    for folder, name in ((FOLDER, "DIR"), (TIMER.parent.parent, "ROOT"), (Path(tempfile.gettempdir()), "TEMPORARY")):
        text = text.replace(str(folder), name)
    return text


def _revision(training: Training) -> str:
    words = ["git", "-C", str(training.checkout), "log", "-1", "--format=%h, %cs"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def _words(training: Training, size: str, out: str, twice: str) -> list[str]:
    places = {"{src}": str(training.checkout), "{here}": str(TIMER.parent), "{bs2}": twice}
    words = training.filled(size, out)
    for place, value in places.items():
        words = [word.replace(place, value) for word in words]
    return words


def _by_hand(training: Training) -> dict[str, Any]:
    """Return seconds of a step of each size, and of its processor time, which other programs disturb less."""
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for size in training.sizes:
            out = Path(scratch) / "times.json"
            out.unlink(missing_ok=True)
            words = [word.replace(*training.by_hand) for word in _words(training, str(size), scratch, str(2 * size))]
            with (Path(scratch) / "log.txt").open("w") as log, suppress(subprocess.TimeoutExpired):
                subprocess.run(
                    [PYTHON, TIMER, out, str(MIN_STEPS), str(MIN_SECONDS), *words],
                    cwd=training.checkout / training.folder,
                    env=os.environ | training.environment,
                    stdout=log,
                    stderr=log,
                    timeout=HAND_LIMIT_S,
                    check=False,
                )
            if not out.exists():
                rows[str(size)] = {"failed": (Path(scratch) / "log.txt").read_text()[-300:]}
                continue
            times = json.loads(out.read_text())
            samples = size * training.micro_batches
            rows[str(size)] = times | {
                "samples_per_s": samples / times["step_s"],
                "samples_per_cpu_s": samples / times["cpu_s"],
            }
            print(training.name, size, rows[str(size)], flush=True)
    return rows


def _least(earlier: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fastest run of each size, as other programs only ever slow a run down."""
    runs = {size: [one for one in (earlier.get(size), row) if one and "failed" not in one] for size, row in new.items()}
    return {
        size: {name: choose(one[name] for one in runs[size]) for name, choose in _FASTER.items()} if runs[size] else row
        for size, row in new.items()
    }


_FASTER = {"step_s": min, "cpu_s": min, "steps": max, "samples_per_s": max, "samples_per_cpu_s": max}


def _explored(training: Training) -> dict[str, Any]:
    scratch = Path(tempfile.mkdtemp(prefix="bexplore-trainings-"))
    accumulated = "{global_batch_size}"  # of a program that divides it by its accumulation
    words = _words(training, "{micro_batch_size}", "{output_dir}", accumulated)
    if "{bs2}" in training.words:
        words[words.index("--num-accum") + 1] = "{accumulation}"
    variables = [part for name, value in training.environment.items() for part in ("--env", f"{name}={value}")]
    command = [
        *(sys.executable, "-m", "bexplore", "explore", "--json", "--fresh", "--writes-are-fine", "--model-dir"),
        *(str(scratch / "run"), "--set", "explore.effort=quick"),
        *("--set", f"explore.candidates={list(training.sizes)}", "--replicas", "1"),
        *(*variables, "--", str(PYTHON), *words),
    ]
    began_s = time.monotonic()
    try:
        done = subprocess.run(
            command,
            cwd=training.checkout / training.folder,
            env=os.environ | {"PYTHONPATH": str(TIMER.parent.parent)},
            capture_output=True,
            text=True,
            timeout=EXPLORE_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not ended after {EXPLORE_LIMIT_S:.0f} s", "seconds": EXPLORE_LIMIT_S}
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    journals = list(scratch.rglob("journal.jsonl"))
    details = [json.loads(line) for line in journals[0].read_text().splitlines()] if journals else []
    result = next((event for event in events if event["event"] == "result"), None)
    row = {
        "command": " ".join(command[command.index("--") + 1 :]),
        "seconds": round(time.monotonic() - began_s, 1),
        "return_code": done.returncode,
        "probes": [_probe(one) for one in details if "outcome" in one],
    }
    keep = FOLDER / "logs" / training.name.replace(" ", "_").replace("/", "_")
    shutil.rmtree(keep, ignore_errors=True)
    shutil.move(scratch, keep)
    (keep / "stdout.jsonl").write_text(done.stdout)
    (keep / "stderr.txt").write_text(done.stderr)
    if result is None:
        return row | {"error": done.stderr.strip()[-600:]}
    shown = ("micro_batch_size", "confidence", "samples_per_s", "relative_performance", "stop_reason", "num_probes")
    return row | {name: result[name] for name in shown}


def _probe(one: Mapping[str, Any]) -> dict[str, Any]:
    details = one.get("details") or {}
    size, times = one["probe"]["micro_batch_size"], one["pass_times_s"]
    return {
        "size": size,
        "purpose": one["probe"]["purpose"],
        "outcome": one["outcome"],
        "reason": one["reason"][:300],
        "seconds": round(one["elapsed_s"], 1),
        "pass_s": sorted(times)[len(times) // 2] if times else None,
        "step_s": details.get("step_time_s"),
        "micro_batches": details.get("micro_batches_per_step"),
        "rows": (details.get("arrived") or {}).get("rows"),
        "verdicts": details.get("verdicts"),
    }


def _judged(training: Training, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return whether answer, samples and micro-batches are right; the answer by the processor time of a sample."""
    hand = {int(size): one for size, one in row.get("by_hand", {}).items() if "failed" not in one}
    found = row.get("explored", {})
    if not hand or not found:
        return {}
    speeds = {size: one["samples_per_cpu_s"] for size, one in hand.items()}
    near = sorted(size for size, speed in speeds.items() if speed >= (1 - WITHIN) * max(speeds.values()))
    measured = [one for one in found["probes"] if one["outcome"] == "measured"]
    expected = 2.0 if "{bs2}" in training.words else training.micro_batches
    verdicts = [set(one["verdicts"].values()) for one in measured]
    # The first size alone cannot show that what arrives follows the size, where it is in other dimensions.
    counted = any(words == {"verified"} for words in verdicts) and all(
        words <= {"verified"} | ({"unconfirmed"} if one is measured[0] else set()) and one["micro_batches"] == expected
        for words, one in zip(verdicts, measured, strict=True)
    )
    answer = found.get("micro_batch_size")
    below = None if answer not in speeds else round(1 - speeds[answer] / max(speeds.values()), 3)
    return {
        "within 5 %": near,
        "answer": answer,
        "below the best": below,
        "right": answer in near,
        "samples": counted,
        "confidence": found.get("confidence"),
        "seconds": found.get("seconds"),
        "error": found.get("error", ""),
    }


def _page(report: Mapping[str, Any]) -> str:
    machine = report["machine"]
    lines = [
        "# Trainings of other people",
        "",
        "Written by `BEXPLORE_TRAININGS=DIR python -m benchmarks.trainings`.",
        "",
        f"* machine: {machine['processor']}, {machine['processors']} processors, Python {machine['python']}, torch "
        f"{machine['torch']}, {machine['at']}",
        "* Each program is as its repository has it, at the revision shown, on one core, with random data in the "
        "program's own format. Where it imports torchvision, a stand-in reads the data and transforms the pictures.",
        "* by hand: the program by itself at each size; shown are the sizes whose samples per second of processor time "
        "are within 5 % of the fastest. Up to twenty other processes shared the two processors, so that the seconds of "
        "a step by the clock (steps, s) are up to seven times its processor time and rank no sizes.",
        "* answer: of `bexplore explore --set explore.effort=quick` with these sizes as candidates. right: it is one "
        "of the sizes within 5 %; below: how much slower than the fastest it is. An exploration that was repeated has "
        "its earlier answers shown.",
        "* samples: size, replicas and micro-batches were verified in each measured start, and the micro-batches of a "
        "step are those of the program.",
        "",
        "| training | field | program | steps, s | sizes | within 5 % by hand | answer | earlier answers | below "
        "| right | samples | score | s |",
        "|---|---|---|---:|---|---|---:|---|---:|---|---|---:|---:|",
    ]
    for training in TRAININGS:
        row = report["trainings"].get(training.name)
        if row is None:
            continue
        judged = row["judged"] = _judged(training, row)
        if not judged:
            continue
        steps = [one["step_s"] for one in row["by_hand"].values() if "failed" not in one]
        yes = {True: "yes", False: "**no**"}
        lines.append(
            f"| {training.name} | {training.field} | {training.origin} {row['revision']} | "
            f"{min(steps):.3g} to {max(steps):.3g} | {', '.join(map(str, training.sizes))} | "
            f"{', '.join(map(str, judged['within 5 %']))} | {judged['answer']} | "
            f"{', '.join(map(str, row.get('earlier_answers', [])))} | {_percent(judged['below the best'])} | "
            f"{yes[judged['right']]} | "
            f"{yes[judged['samples']]} | {judged['confidence']} | {judged['seconds']:.0f} |"
        )
    lines += ["", "## Commands", "", "```"]
    for training in TRAININGS:
        lines.append(f"{training.name}: python {training.words}")
    lines += ["```", "", "## Long evaluations", ""]
    lines += [f"* {training.name}: {training.long_evaluation}" for training in TRAININGS if training.long_evaluation]
    return "\n".join(lines) + "\n"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


if __name__ == "__main__":
    sys.exit(main())
