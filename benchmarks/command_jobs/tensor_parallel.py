"""Tensor parallel: the ranks share each layer, and all train on the same batch; started by torchrun."""

import torch
from common import BACKENDS, Rows, StepLog, classifier, options, own_device
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import cross_entropy


def main():
    args = options()
    device = own_device(args)
    distributed.init_process_group(BACKENDS[args.device])
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    model = classifier().to(device)  # its linear layers have even numbers; by pairs, columns and then rows are shared
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel(), "4": ColwiseParallel(), "6": RowwiseParallel()}
    plan["8"] = ColwiseParallel(output_layouts=Replicate())  # the scores, which each rank needs whole
    parallelize_module(model, init_device_mesh(args.device, (ranks,)), plan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rows = Rows(args.micro_batch_size * args.accumulation * args.steps)
    log, loss_of_step = StepLog(), 0.0
    for micro_batch, (inputs, classes) in enumerate(
        torch.utils.data.DataLoader(rows, batch_size=args.micro_batch_size), start=1
    ):
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


if __name__ == "__main__":
    main()
