"""The jobs of this folder: how each is started, what it needs, and what is to be seen of it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = Path(__file__).parent
# Options of every script; those with `{accumulation}` let bexplore choose how many micro-batches make a step.
OPTIONS = "--micro-batch-size {micro_batch_size} --steps 4000 --out {output_dir}"
ACCUMULATING = f"{OPTIONS} --accumulation {{accumulation}}"
TWO_RANKS = "torchrun --standalone --nproc-per-node 2"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandJob:
    """A training command and what is true of it.

    Attributes:
        name: Short name.
        command: As typed in a shell in this folder. Beside bexplore's placeholders: `{work_dir}`, an empty folder that
            outlives the start.
        config: File of this folder for the placeholder `{config}`; None for none.
        env: Variables of its environment; `{folder}` is this folder.
        packages: Packages and programs that it needs beside torch.
        num_ranks: Processes that train.
        num_replicas: Data-parallel replicas.
        asked_replicas: Given as `--replicas`; None for none.
        log_file: File below `{work_dir}` with a row a step, if its log is not JSON lines on its standard output.
        log_rank: The rank that writes the log.
        outcome: `verified`, or words of the error that it must end with.
    """

    name: str
    command: str
    config: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()
    num_ranks: int = 1
    num_replicas: int = 1
    asked_replicas: int | None = None
    log_file: str | None = None
    log_rank: int = 0
    outcome: str = "verified"

    @property
    def argv(self) -> tuple[str, ...]:
        """The words of the command."""
        return tuple(shlex.split(self.command))

    def samples_per_step(self, micro_batch_size: int, accumulation: int) -> int:
        """Return the samples of one optimizer step, over all replicas."""
        return micro_batch_size * self.num_replicas * (accumulation if self.sets_accumulation else 1)

    @property
    def sets_accumulation(self) -> bool:
        """Whether the start chooses the number of micro-batches of a step."""
        in_config = self.config is not None and "accumulation" in (FOLDER / self.config).read_text()
        return in_config or "{accumulation}" in self.command or "{global_batch_size}" in self.command


def _two(name: str, command: str, **more) -> CommandJob:
    return CommandJob(name=name, command=command, num_ranks=2, num_replicas=2, **more)


JOBS = (
    CommandJob(name="plain loop", command=f"python plain.py {ACCUMULATING}"),
    CommandJob(name="plain loop, images", command=f"python plain.py {ACCUMULATING} --model images"),
    _two("torchrun DDP", f"{TWO_RANKS} ddp.py {ACCUMULATING}"),
    _two("torchrun DDP, images", f"{TWO_RANKS} ddp.py {ACCUMULATING} --model images"),
    _two("FSDP2", f"{TWO_RANKS} fsdp2.py {ACCUMULATING}"),
    CommandJob(name="pipeline 1F1B", command=f"{TWO_RANKS} pipeline.py {ACCUMULATING}", num_ranks=2, log_rank=1),
    _two("mp.spawn", f"python spawn.py {ACCUMULATING}"),
    CommandJob(name="HF Trainer", command=f"python hf_trainer.py {ACCUMULATING}", packages=("transformers",)),
    _two("HF Trainer, 2 ranks", f"{TWO_RANKS} hf_trainer.py {ACCUMULATING}", packages=("transformers",)),
    CommandJob(
        name="accelerate",
        command=f"accelerate launch --cpu --num_processes 1 accelerate_loop.py {ACCUMULATING}",
        packages=("accelerate",),
    ),
    CommandJob(
        name="accelerate, fewer ranks than asked for",
        command=f"accelerate launch --cpu --num_processes 2 accelerate_loop.py {ACCUMULATING}",
        packages=("accelerate",),
        asked_replicas=2,
        outcome="started 1 rank where 2 replicas were asked for",
    ),
    CommandJob(name="Lightning", command=f"python lightning_fit.py {ACCUMULATING}", packages=("lightning",)),
    _two(
        "Lightning ddp",
        f"python lightning_fit.py {ACCUMULATING} --devices 2 --strategy ddp",
        packages=("lightning",),
    ),
    _two(
        "Lightning ddp_spawn",
        f"python lightning_fit.py {ACCUMULATING} --devices 2 --strategy ddp_spawn",
        packages=("lightning",),
    ),
    CommandJob(
        name="Lightning, manual optimization",
        command=f"python lightning_fit.py {OPTIONS} --optimization manual",
        packages=("lightning",),
    ),
    CommandJob(
        name="LitGPT pretrain",
        command="litgpt pretrain --config {config} --train.global_batch_size {global_batch_size} --out_dir {work_dir}",
        config="litgpt.yaml",
        env={"PYTHONPATH": "{folder}"},
        packages=("litgpt", "jsonargparse"),
        log_file="logs/csv/version_0/metrics.csv",
    ),
    CommandJob(name="TRL SFT", command=f"python trl_sft.py {ACCUMULATING}", packages=("trl", "datasets")),
    CommandJob(
        name="TRL SFT, packing",
        command=f"python trl_sft.py {ACCUMULATING} --packing 1",
        packages=("trl", "datasets"),
    ),
    CommandJob(
        name="torchtune",  # by its module: Ray installs a program of the name `tune` as well
        command="python -m torchtune._cli.tune run full_finetune_single_device --config {config}",
        config="torchtune.yaml",
        env={"PYTHONPATH": "{folder}"},
        packages=("torchtune", "torchao"),
    ),
    *(
        _two(
            f"DeepSpeed ZeRO {stage}",
            f"deepspeed --num_gpus 2 --master_port 29541 deepspeed_zero.py {ACCUMULATING} --stage {stage}",
            packages=("deepspeed", "hjson", "ninja"),
        )
        for stage in range(4)
    ),
    _two("Ray actors", f"python ray_actors.py {ACCUMULATING}", packages=("ray", "msgpack")),
    _two("srun", f"srun -n 2 python ddp.py {ACCUMULATING}", packages=("srun", "slurmctld", "munged")),
    CommandJob(name="GAN", command=f"python gan.py {OPTIONS}"),
    CommandJob(name="LBFGS", command=f"python lbfgs.py {OPTIONS}"),
    CommandJob(name="GradScaler that skips", command=f"python grad_scaler.py {OPTIONS}"),
    CommandJob(name="optimizer in backward", command=f"python step_in_backward.py {OPTIONS}"),
    CommandJob(name="compiled step", command=f"python compiled_step.py {OPTIONS}"),
    CommandJob(
        name="compiled step, no DataLoader",
        command=f"python compiled_step.py {OPTIONS} --loader 0",
        outcome="unseen: neither a DataLoader nor a call of the model",
    ),
    *(
        CommandJob(name=f"steps of {seconds} s", command=f"python slow_steps.py {OPTIONS} --seconds {seconds}")
        for seconds in (1.2, 3, 20)
    ),
    CommandJob(
        name="sampling for 65 s after each 20 steps",
        command=f"python slow_steps.py {OPTIONS} --seconds 0.05 --epoch 20 --sampling 65",
    ),
    CommandJob(name="own optimizer", command=f"python own_optimizer.py {OPTIONS}", outcome="no step observed"),
)
