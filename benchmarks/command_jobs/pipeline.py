"""Two pipeline stages with the 1F1B schedule, started by torchrun; the accumulation is the number of micro-batches."""

import torch
from common import BACKENDS, Rows, StepLog, classifier, options, own_device
from torch import distributed
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.functional import cross_entropy


def main():
    args = options()
    device = own_device(args)
    distributed.init_process_group(BACKENDS[args.device])
    rank = distributed.get_rank()
    layers = classifier(depth=4).to(device)
    stage = layers[:4] if rank == 0 else layers[4:]
    pipeline = PipelineStage(stage, rank, num_stages=2, device=device)
    schedule = Schedule1F1B(pipeline, n_microbatches=args.accumulation, loss_fn=cross_entropy)
    optimizer = torch.optim.AdamW(stage.parameters(), lr=1e-3)
    whole_batch = args.micro_batch_size * args.accumulation
    loader = torch.utils.data.DataLoader(Rows(whole_batch * args.steps), batch_size=whole_batch)
    log = StepLog()
    for inputs, classes in loader:
        inputs, classes = inputs.to(device), classes.to(device)
        losses: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(inputs)
        else:
            schedule.step(target=classes, losses=losses)
        optimizer.step()
        if rank == 1:
            log(torch.stack(losses).mean())
        optimizer.zero_grad()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
