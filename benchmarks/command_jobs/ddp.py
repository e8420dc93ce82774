"""Data parallel: started by torchrun, or by srun with the ranks of Slurm."""

import contextlib
import os

import torch
from common import BACKENDS, MODELS, Rows, StepLog, options, own_device
from torch import distributed
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def ranks_of_slurm():
    """Let srun's variables stand for those that torchrun sets."""
    os.environ.update(RANK=os.environ["SLURM_PROCID"], WORLD_SIZE=os.environ["SLURM_NTASKS"])
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", str(20000 + int(os.environ["SLURM_JOB_ID"]) % 20000))


def main():
    args = options(("--model", "layers"))
    if "RANK" not in os.environ:
        ranks_of_slurm()
    device = own_device(args)
    distributed.init_process_group(BACKENDS[args.device])
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    model = DistributedDataParallel(MODELS[args.model]().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rows = Rows(args.micro_batch_size * args.accumulation * args.steps * ranks)
    loader = DataLoader(rows, batch_size=args.micro_batch_size, sampler=DistributedSampler(rows))
    log, loss_of_step = StepLog(), 0.0
    for micro_batch, (inputs, classes) in enumerate(loader, start=1):
        inputs, classes = inputs.to(device), classes.to(device)
        last = micro_batch % args.accumulation == 0
        with contextlib.nullcontext() if last else model.no_sync():
            loss = cross_entropy(model(inputs), classes) / args.accumulation
            loss.backward()
        loss_of_step += loss.item()
        if last:
            optimizer.step()
            if rank == 0:
                log(loss_of_step)
            optimizer.zero_grad()
            loss_of_step = 0.0
    if rank == 0:
        torch.save(model.module.state_dict(), args.out / "model.pt")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
