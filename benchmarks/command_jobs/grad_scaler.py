"""A gradient scaler that skips the update of every eighth step, where an infinite gradient arrives."""

import torch
from common import MODELS, Rows, StepLog, options, own_device
from torch.nn.functional import cross_entropy

SKIPPED = 8


def main():
    args = options(("--model", "layers"), ("--autocast", "no"))
    device = own_device(args)
    model = MODELS[args.model]().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    scaler = torch.amp.GradScaler(args.device, growth_interval=4)
    loader = torch.utils.data.DataLoader(Rows(args.micro_batch_size * args.steps), batch_size=args.micro_batch_size)
    log = StepLog()
    for step, (inputs, classes) in enumerate(loader, start=1):
        inputs, classes = inputs.to(device), classes.to(device)
        with torch.autocast(args.device, torch.float16, enabled=args.autocast == "float16"):
            loss = cross_entropy(model(inputs), classes)
        scaler.scale(loss).backward()
        if step % SKIPPED == 0:
            next(model.parameters()).grad[0, 0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        log(loss.item())
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
