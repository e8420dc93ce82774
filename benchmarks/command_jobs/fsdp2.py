"""Fully sharded data parallel (`fully_shard`), started by torchrun."""

import torch
from common import BACKENDS, MODELS, Rows, StepLog, options, own_device
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler


def main():
    args = options(("--model", "layers"))
    device = own_device(args)
    distributed.init_process_group(BACKENDS[args.device])
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    mesh = init_device_mesh(args.device, (ranks,))
    model = MODELS[args.model]().to(device)
    for layer in model:
        if next(layer.parameters(), None) is not None:
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rows = Rows(args.micro_batch_size * args.accumulation * args.steps * ranks)
    loader = DataLoader(rows, batch_size=args.micro_batch_size, sampler=DistributedSampler(rows))
    log, loss_of_step = StepLog(), 0.0
    for micro_batch, (inputs, classes) in enumerate(loader, start=1):
        inputs, classes = inputs.to(device), classes.to(device)
        last = micro_batch % args.accumulation == 0
        model.set_requires_gradient_sync(last)
        loss = cross_entropy(model(inputs), classes) / args.accumulation
        loss.backward()
        loss_of_step += loss.item()
        if last:
            optimizer.step()
            if rank == 0:
                log(loss_of_step)
            optimizer.zero_grad()
            loss_of_step = 0.0
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
