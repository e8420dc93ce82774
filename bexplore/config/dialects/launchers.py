"""The launchers that start one process for each device."""

from __future__ import annotations

LAUNCHERS = ("python", "torchrun", "accelerate", "deepspeed", "srun")


def launched(launcher: str, num_processes: int, program: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words that start a program on one host.

    Args:
        launcher: One of `LAUNCHERS`.
        num_processes: Processes to start.
        program: A script or `-m` and a module, with arguments.

    Source: the command lines of torch.distributed.run, accelerate launch, deepspeed and Slurm's srun.
    """
    count = str(num_processes)
    is_module = program[0] == "-m"
    if launcher == "torchrun":
        return ("torchrun", "--standalone", "--nproc-per-node", count, *program)
    if launcher == "accelerate":
        return ("accelerate", "launch", "--num_processes", count, *program)
    if launcher == "deepspeed":
        return ("deepspeed", "--num_gpus", count, *(("--module", *program[1:]) if is_module else program))
    if launcher == "srun":
        return ("srun", "--ntasks", count, "python", *program)
    return ("python", *program)
