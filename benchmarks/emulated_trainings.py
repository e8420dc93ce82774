"""Trainings on an emulated GPU: `python -m benchmarks.emulated_trainings`, with BEXPLORE_CUDA_TORCH set.

Trainings of many frameworks, those of the command benchmark and some that a GPU alone can run, each explored as a user
would: `bexplore explore -- COMMAND`, in an environment in which PyTorch's CUDA build finds emulated devices. Of each
are shown the ranks, the samples of a step, what was verified of the answer's own start, the memory of each rank, what
did not fit, and what was left behind. `--cost` times a start on an emulated device
beside one on the CPU, and the build of the libraries. `make bench-emulated` fetches what it needs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from benchmarks.command_jobs.table import ACCUMULATING, FOLDER, OPTIONS, TWO_RANKS
from bexplore.emulated_gpu import emulated_environment
from bexplore.emulated_gpu.libraries import read_torch
from bexplore.host.accelerators import Device, device_by_name
from bexplore.host.machine import package_version, processor_name

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
TORCH_VARIABLE = "BEXPLORE_CUDA_TORCH"  # a folder with the CUDA build of torch, and its triton
GIB = 2**30
LIMIT_S = 900.0  # of one exploration, on a machine with other work
SIZES = (64, 4)  # the largest size and the number of probes, where a training names no others
ON_GPU = "--device cuda"
ACCUMULATION = 2  # with which a command is started that takes one
COST_STARTS, COST_BUILDS = 9, 3
EIGHT_RANKS = "torchrun --standalone --nproc-per-node 8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A training command on emulated devices, and what is true of it.

    Attributes:
        name: Short name.
        command: As typed in a shell in the folder of the jobs.
        config: File of that folder for the placeholder `{config}`; None for none.
        env: Variables of the command; `{folder}` is the folder of the jobs, `{site}` that of PyTorch's CUDA build, and
            `{environment}` the virtual environment of the frameworks.
        packages: Packages that it needs beside torch.
        num_ranks: Processes that train, each on a device of its own.
        num_replicas: Data-parallel replicas; None for one a rank.
        memory_gib: Memory of a device.
        sizes: The largest size that is tried, and the number of probes.
        runs_out: Whether some sizes below the largest do not fit.
        own_accumulation: Micro-batches of a step, where the command fixes them itself.
    """

    name: str
    command: str
    config: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    num_ranks: int = 1
    num_replicas: int | None = None
    memory_gib: int = 24
    sizes: tuple[int, int] = SIZES
    runs_out: bool = False
    own_accumulation: int = 1

    @property
    def replicas(self) -> int:
        """Data-parallel replicas."""
        return self.num_ranks if self.num_replicas is None else self.num_replicas

    @property
    def accumulation(self) -> int:
        """Micro-batches of a step."""
        is_told = "{accumulation}" in self.command or "{global_batch_size}" in self.command
        return ACCUMULATION if is_told else self.own_accumulation


def _gpu_loop(name: str, words: str, **more) -> Training:
    return Training(name=name, command=f"python gpu_loop.py {ACCUMULATING} {ON_GPU} {words}".strip(), **more)


def _script(name: str, script: str, options: str = ACCUMULATING, start: str = "python", **more) -> Training:
    return Training(name=name, command=f"{start} {script} {options} {ON_GPU}", **more)


# A sample of the encoder takes some 20 MiB in float32, and 13 in autocast.
_TO_THE_LIMIT: Mapping[str, Any] = {"sizes": (2048, 6), "runs_out": True}
_HF = ("transformers",)
# In a folder of its own, where no other framework finds it: it imports torchvision, for which a stand-in is.
_TIMM = {"PYTHONPATH": "{site}:{environment}/timm"}
TRAININGS = (
    _script("plain loop", "plain.py --model encoder", **_TO_THE_LIMIT),
    _script("plain loop, images", "plain.py --model images"),
    _gpu_loop("autocast, pinned memory, 2 workers", "--workers 2"),
    _gpu_loop("torch.compile, reduce-overhead", "--mode reduce-overhead --model layers"),
    _gpu_loop("torch.compile, max-autotune", "--mode max-autotune --model layers"),
    _gpu_loop("captured graphs", "--mode captured"),
    _gpu_loop("torch.profiler", "--profile 1"),
    _gpu_loop("NVML", "--nvml 1", packages=("pynvml",)),
    _gpu_loop("expandable segments", "", env={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, **_TO_THE_LIMIT),
    _gpu_loop("cudaMallocAsync", "", env={"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}, **_TO_THE_LIMIT),
    _script("GradScaler, autocast", "grad_scaler.py --autocast float16 --model encoder", OPTIONS),
    _script("compiled step", "compiled_step.py", OPTIONS),
    _script("torchrun DDP", "ddp.py --model encoder", start=TWO_RANKS, num_ranks=2, **_TO_THE_LIMIT),
    _script("FSDP2", "fsdp2.py --model encoder", start=TWO_RANKS, num_ranks=2, **_TO_THE_LIMIT),
    _script("FSDP2, 8 devices", "fsdp2.py", start=EIGHT_RANKS, num_ranks=8, sizes=(16, 2), memory_gib=80),
    _script("tensor parallel", "tensor_parallel.py", start=TWO_RANKS, num_ranks=2, num_replicas=1),
    _script("pipeline 1F1B", "pipeline.py", start=TWO_RANKS, num_ranks=2, num_replicas=1),
    _script("mp.spawn", "spawn.py", num_ranks=2),
    _script("HF Trainer, LLaMA", "hf_trainer.py --model llama", packages=_HF, sizes=(128, 6), runs_out=True),
    _script("HF Trainer, LLaMA, checkpointing", "hf_trainer.py --model llama --checkpointing 1", packages=_HF),
    _script("HF Trainer, 2 ranks", "hf_trainer.py", start=TWO_RANKS, num_ranks=2, packages=_HF),
    _script("accelerate", "accelerate_loop.py", start="accelerate launch --num_processes 1", packages=("accelerate",)),
    _script(
        "accelerate, 2 ranks",
        "accelerate_loop.py",
        start="accelerate launch --multi_gpu --num_processes 2 --main_process_port 29543",
        packages=("accelerate",),
        num_ranks=2,
    ),
    _script("Lightning", "lightning_fit.py", packages=("lightning",)),
    _script("Lightning ddp", "lightning_fit.py --devices 2 --strategy ddp", packages=("lightning",), num_ranks=2),
    Training(
        name="LitGPT pretrain, 2 devices with FSDP",
        command="litgpt pretrain --config {config} --devices 2 --train.global_batch_size {global_batch_size} "
        "--precision bf16-true --out_dir {output_dir}",
        config="litgpt.yaml",
        env={"PYTHONPATH": "{site}:{folder}"},
        packages=("litgpt", "jsonargparse"),
        num_ranks=2,
    ),
    _script("TRL SFT", "trl_sft.py", packages=("trl", "datasets")),
    _script("TRL SFT, packing", "trl_sft.py --packing 1", packages=("trl", "datasets")),
    Training(
        name="torchtune",
        command="python -m torchtune._cli.tune run full_finetune_single_device --config {config} device=cuda "
        "dtype=bf16",
        config="torchtune.yaml",
        env={"PYTHONPATH": "{site}:{folder}"},
        packages=("torchtune", "torchao"),
        own_accumulation=2,
    ),
    _script("timm ResNet", "timm_classifier.py --model resnet18", OPTIONS, env=_TIMM, packages=("timm",)),
    _script(
        "timm ViT", "timm_classifier.py --model vit_tiny_patch16_224 --side 224", OPTIONS, env=_TIMM, packages=("timm",)
    ),
    _script("sentence-transformers", "sentence_pairs.py", packages=("sentence_transformers", "datasets")),
    *(
        _script(
            f"DeepSpeed ZeRO {stage}",
            f"deepspeed_zero.py --stage {stage}",
            start="deepspeed --num_gpus 2 --master_port 29542",
            num_ranks=2,
            packages=("deepspeed", "hjson", "ninja"),
        )
        for stage in (1, 2, 3)
    ),
)
# Trainings of a test, each within half a minute: what differs from the table, beside two probes of sizes up to 16.
SHORTENED: Mapping[str, Mapping[str, Any]] = {
    "autocast, pinned memory, 2 workers": {},
    "torch.compile, reduce-overhead": {},
    "HF Trainer, LLaMA": {"memory_gib": 6, "sizes": (64, 4)},
    "Lightning": {},
    "FSDP2": {"runs_out": False},
}
COLUMNS = (
    "ranks",
    "replicas",
    "samples a step",
    "size",
    "verdicts",
    "MiB of each rank",
    "sizes that did not fit",
    "left",
    "starts",
    "s",
    "right",
)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.emulated_trainings", description=__doc__)
    names = [training.name for training in TRAININGS]
    parser.add_argument("--only", nargs="+", metavar="NAME", default=names, help="these trainings alone")
    parser.add_argument("--device", default="h100", help="what is emulated")
    parser.add_argument(
        "--environment", type=Path, default=ROOT / ".venv-command", help="virtual environment of the frameworks"
    )
    parser.add_argument("--cost", action="store_true", help="time starts and the build of the libraries instead")
    parser.add_argument("--shortened", choices=list(SHORTENED), help="this one alone, shortened; no result is written")
    options = parser.parse_args(arguments)
    site, device = Path(os.environ[TORCH_VARIABLE]).resolve(), device_by_name(options.device)
    if options.shortened:
        row = explored(shortened(options.shortened), site, options.environment, device)
        print(json.dumps(row))
        return 0 if row["right"] else 1
    report = _earlier()
    if options.cost:
        report["cost"] = cost(site, options.environment, device)
        _write(report)
        print(report["cost"])
        return 0
    for training in TRAININGS:
        if training.name not in options.only:
            continue
        absent = [name for name in training.packages if not _is_there(name, options.environment)]
        row = {"left out": ", ".join(absent)} if absent else explored(training, site, options.environment, device)
        report["trainings"][training.name] = row
        _write(report | _facts(site, device))
        print(training.name, {name: row[name] for name in row if name != "log"}, flush=True)
        if row.get("log"):
            print(row["log"], file=sys.stderr, flush=True)
    rows = [row for row in report["trainings"].values() if "left out" not in row]
    return 0 if all(row["right"] for row in rows) else 1


def shortened(name: str) -> Training:
    """Return a training of the table that takes half a minute, started without a program beside Python."""
    (training,) = [one for one in TRAININGS if one.name == name]
    command = training.command.replace("torchrun", "python -m torch.distributed.run")
    return replace(training, command=command, **{"sizes": (16, 2), **SHORTENED[name]})


def explored(training: Training, site: Path, environment: Path, device: Device) -> dict[str, Any]:
    """Explore a training on emulated devices; return its row.

    Args:
        training: The training.
        site: Folder with PyTorch's CUDA build.
        environment: Virtual environment with the frameworks.
        device: What is emulated.
    """
    scratch = Path(tempfile.mkdtemp(prefix="bexplore-emulated-trainings-"))
    temporary = scratch / "temporary"
    temporary.mkdir()
    env = environment_of(training, site, environment, device)
    shared = Path(env["BEXPLORE_EMULATED_SHARED_FOLDER"])
    began_s = time.monotonic()
    try:
        code, text = _started(_command(training, scratch, site, environment), env | {"TMPDIR": str(temporary)})
        row = {"s": round(time.monotonic() - began_s, 1), "status": code}
        left = _left_by(shared, temporary, scratch / "runs")
        return row | _judged(training, scratch / "runs", left, text)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.rmtree(shared, ignore_errors=True)


def environment_of(training: Training, site: Path, environment: Path, device: Device) -> dict[str, str]:
    """Return an environment with emulated devices, the programs of the frameworks, and PyTorch's CUDA build."""
    emulated = emulated_environment(
        device,
        num_devices=training.num_ranks,
        memory_bytes=training.memory_gib * GIB,
        torch_folder=site / "torch",
    )
    programs = [str(environment.resolve() / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]
    return {
        **os.environ,
        **emulated,
        "PYTHONPATH": str(site),  # before the environment's own PyTorch
        "PATH": os.pathsep.join(programs),
        "OMP_NUM_THREADS": "1",
    }


def _command(training: Training, scratch: Path, site: Path, environment: Path) -> list[str]:
    folders = {"{folder}": FOLDER, "{site}": site, "{environment}": environment.resolve()}
    most, num_probes = training.sizes
    words = ["bexplore", "explore", *([training.config] if training.config else [])]
    words += ["--json", "--model-dir", str(scratch / "runs"), "--writes-are-fine"]
    words += ["--set", f"explore.max={most}", "--set", f"explore.max_probes={num_probes}"]
    if training.replicas > 1:
        words += ["--replicas", str(training.replicas)]
    for name, value in training.env.items():
        for placeholder, folder in folders.items():
            value = value.replace(placeholder, str(folder))
        words += ["--env", f"{name}={value}"]
    return [*words, "--", *shlex.split(training.command)]


def _started(command: list[str], env: Mapping[str, str]) -> tuple[int, str]:
    process = subprocess.Popen(
        command, cwd=FOLDER, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    try:
        text, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.terminate()
        text, _ = process.communicate()
    return process.returncode, text


def _left_by(shared: Path, temporary: Path, runs: Path) -> list[str]:
    """Return what an exploration left behind: processes, shared memory, temporary files."""
    mark = f"BEXPLORE_EMULATED_SHARED_FOLDER={shared}".encode()
    processes = [f"process {pid}" for pid in psutil.pids() if pid != os.getpid() and mark in _environment(pid)]
    own = {path.stem.rpartition("-")[2] for path in runs.rglob("hello-*.json")}
    blocks = [path.name for path in Path("/dev/shm").iterdir() if own & set(path.name.replace("-", "_").split("_"))]
    files = [path.name for folder in (shared, temporary) for path in folder.iterdir() if path.name != "devices"]
    return [*processes, *blocks, *files]


def _environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def _judged(training: Training, runs: Path, left: list[str], text: str) -> dict[str, Any]:
    journal = next(iter(runs.parent.rglob("journal.jsonl")), None)
    result_file = next(iter(runs.parent.rglob("result.json")), None)
    if journal is None or result_file is None:
        return {"verdicts": "no result", "left": left, "right": False, "log": text[-4000:]}
    result = json.loads(result_file.read_text())
    starts = [json.loads(line) for line in journal.read_text().splitlines()]
    size = result["micro_batch_size"]
    own = [one for one in starts if one["outcome"] == "measured" and one["probe"]["micro_batch_size"] == size]
    verified = [one for one in own if one["probe"]["compilation"] == "exact"]
    if not verified:
        return {"size": size, "verdicts": "no start of its own", "left": left, "right": False, "log": text[-4000:]}
    details = verified[-1]["details"]
    outcomes = {}
    for one in starts:
        outcomes.setdefault(one["outcome"], []).append(one["probe"]["micro_batch_size"])
    refused = sorted(set(outcomes.get("out_of_memory", [])))
    memory = details["peak_memory_bytes_by_rank"]
    accumulation = details["micro_batches_per_step"]
    samples = size * accumulation * details["num_replicas"]
    # The last step of an epoch may have fewer micro-batches.
    expected = training.num_ranks, training.replicas, training.accumulation
    seen = details["num_ranks"], details["num_replicas"], round(accumulation)
    right = (
        set(details["verdicts"].values()) == {"verified"}
        and seen == expected
        and len(memory) == training.num_ranks
        and all(0 < number < training.memory_gib * GIB for number in memory)
        and bool(refused) == training.runs_out
        and set(outcomes) <= {"measured", "out_of_memory"}
        and result["device_info"]["is_emulated"] is True
        and not left
    )
    return {
        "ranks": details["num_ranks"],
        "replicas": details["num_replicas"],
        "samples a step": round(samples),
        "size": size,
        "verdicts": ", ".join(f"{name} {value}" for name, value in details["verdicts"].items()),
        "MiB of each rank": [round(number / 2**20) for number in memory],
        "sizes that did not fit": refused,
        "starts": len(starts),
        "left": left,
        "right": right,
        "log": "" if right else json.dumps(outcomes) + json.dumps(details) + text[-3000:],
    }


def cost(site: Path, environment: Path, device: Device) -> dict[str, Any]:
    """Time a start to its third step on the CPU, under PyTorch's CPU build, and on an emulated device, by turns."""
    emulated = environment_of(TRAININGS[0], site, environment, device)
    environments = {"cpu": {**os.environ, "PATH": emulated["PATH"], "OMP_NUM_THREADS": "1"}, "cuda": emulated}
    seconds: dict[str, list[float]] = {name: [] for name in environments}
    with tempfile.TemporaryDirectory() as folder:
        command = ["python", "plain.py", "--steps", "3", "--out", folder]
        for number in range(COST_STARTS + 1):
            for name, env in environments.items():
                began_s = time.monotonic()
                words = [*command, "--device", name]
                subprocess.run(words, cwd=FOLDER, env=env, check=True, stdout=subprocess.DEVNULL)
                if number:  # the first reads the files
                    seconds[name].append(time.monotonic() - began_s)
        builds = [_build_s(site, Path(folder, f"cache-{number}")) for number in range(COST_BUILDS)]
    medians = {name: round(statistics.median(values), 2) for name, values in seconds.items()}
    beyond = [one - other for one, other in zip(seconds["cuda"], seconds["cpu"], strict=True)]
    return {
        "starts": COST_STARTS,
        "start_s": medians,
        "beyond_s": round(statistics.median(beyond), 2),
        "most_beyond_s": round(max(beyond), 2),
        "build_s": [round(value, 1) for value in builds],
    }


def _build_s(site: Path, cache: Path) -> float:
    code = "import sys; from pathlib import Path; from bexplore.emulated_gpu import built_libraries as build; "
    code += "build(Path(sys.argv[1]))"
    began_s = time.monotonic()
    env = os.environ | {"BEXPLORE_CACHE_DIR": str(cache)}
    subprocess.run([sys.executable, "-c", code, str(site / "torch")], env=env, check=True, cwd=ROOT)
    return time.monotonic() - began_s


def _is_there(package: str, environment: Path) -> bool:
    if (environment / package).is_dir():  # in a folder of its own
        return True
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
    python = environment / "bin" / "python"
    return subprocess.run([python, "-c", code, package], check=False, capture_output=True).returncode == 0


def _earlier() -> dict[str, Any]:
    """Rows of an earlier run stay, so that trainings may be run one by one."""
    path = RESULTS / "emulated_trainings.json"
    return json.loads(path.read_text()) if path.exists() else {"trainings": {}}


def _facts(site: Path, device: Device) -> dict[str, str]:
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{processor_name()}, {os.cpu_count()} processors, no GPU",
        "versions": f"Python {platform.python_version()}, torch {read_torch(site / 'torch').version}, transformers "
        f"{package_version('transformers')}",
        "device": f"emulated {device.name}",
    }


def _write(report: Mapping[str, Any]) -> None:
    rows = {name: {key: row[key] for key in row if key != "log"} for name, row in report["trainings"].items()}
    (RESULTS / "emulated_trainings.json").write_text(json.dumps({**report, "trainings": rows}, indent=1) + "\n")
    (RESULTS / "emulated_trainings.md").write_text(_markdown({**report, "trainings": rows}))


def _markdown(report: Mapping[str, Any]) -> str:
    order = [training.name for training in TRAININGS]
    rows = {name: report["trainings"][name] for name in order if name in report["trainings"]}
    ran = {name: row for name, row in rows.items() if "left out" not in row}
    found = report.get("cost")
    lines = ["# Trainings on an emulated GPU", "", "Written by `make bench-emulated`.", ""]
    lines += [f"* {name}: {report[name]}" for name in ("device", "machine", "versions", "at")]
    lines += [
        "* each explored by `bexplore explore -- COMMAND`, unmodified, on devices of 24 GiB (80 where 8 ranks train)",
        "* the row is that of the answer's own start: verdicts of the size, replicas and accumulation, and the peak of "
        "allocated memory of each rank",
        "* left: processes, shared memory and temporary files after the exploration",
        "* speeds are not shown: an emulated device has none, and which size wins means nothing",
        f"* right: {sum(row['right'] for row in ran.values())} of {len(ran)}",
        "",
        f"| training | {' | '.join(COLUMNS)} |",
        "|---" * (len(COLUMNS) + 1) + "|",
    ]
    for name, row in ran.items():
        lines.append(f"| {name} | {' | '.join(_cell(row.get(column, '')) for column in COLUMNS)} |")
    if found:
        lines += ["", "## Cost", ""]
        lines += [
            f"* a start and three steps, median of {found['starts']} by turns: {found['start_s']['cpu']} s on the CPU "
            f"under the CPU build and {found['start_s']['cuda']} s on an emulated device; {found['beyond_s']} s more, "
            f"{found['most_beyond_s']} s at most",
            f"* the libraries build in {', '.join(str(value) for value in found['build_s'])} s",
        ]
    absent = {name: row["left out"] for name, row in rows.items() if "left out" in row}
    lines += ["", *(f"* not run: {name} needs {needs}" for name, needs in absent.items())] if absent else []
    return "\n".join(lines).rstrip() + "\n"


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    if isinstance(value, list):
        return ", ".join(str(one) for one in value) or "-"
    return str(value).replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    sys.exit(main())
