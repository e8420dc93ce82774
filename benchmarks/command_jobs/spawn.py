"""Data parallel in two processes that `torch.multiprocessing.spawn` starts: no launcher."""

import socket

import torch
from common import BACKENDS, Rows, StepLog, classifier, options, own_device
from torch import distributed
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

RANKS = 2


def train(rank, port, args):
    device = own_device(args, rank)
    distributed.init_process_group(
        BACKENDS[args.device], init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS
    )
    model = DistributedDataParallel(classifier().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rows = Rows(args.micro_batch_size * args.accumulation * args.steps * RANKS)
    loader = DataLoader(rows, batch_size=args.micro_batch_size, sampler=DistributedSampler(rows, RANKS, rank))
    log, loss_of_step = StepLog(), 0.0
    for micro_batch, (inputs, classes) in enumerate(loader, start=1):
        inputs, classes = inputs.to(device), classes.to(device)
        loss = cross_entropy(model(inputs), classes) / args.accumulation
        loss.backward()
        loss_of_step += loss.item()
        if micro_batch % args.accumulation == 0:
            optimizer.step()
            if rank == 0:
                log(loss_of_step)
            optimizer.zero_grad()
            loss_of_step = 0.0
    distributed.destroy_process_group()


def main():
    args = options()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(train, (port, args), nprocs=RANKS)


if __name__ == "__main__":
    main()
