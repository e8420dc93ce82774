"""A training loop on one device, with a DataLoader and gradient accumulation."""

import torch
from common import MODELS, Rows, StepLog, options, own_device
from torch.nn.functional import cross_entropy


def main():
    args = options(("--model", "layers"))
    device = own_device(args)
    model = MODELS[args.model]().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rows = Rows(args.micro_batch_size * args.accumulation * args.steps)
    loader = torch.utils.data.DataLoader(rows, batch_size=args.micro_batch_size)
    log, loss_of_step = StepLog(), 0.0
    for micro_batch, (inputs, classes) in enumerate(loader, start=1):
        inputs, classes = inputs.to(device), classes.to(device)
        loss = cross_entropy(model(inputs), classes) / args.accumulation
        loss.backward()
        loss_of_step += loss.item()
        if micro_batch % args.accumulation == 0:
            optimizer.step()
            log(loss_of_step)
            optimizer.zero_grad()
            loss_of_step = 0.0
    torch.save(model.state_dict(), args.out / "model.pt")


if __name__ == "__main__":
    main()
