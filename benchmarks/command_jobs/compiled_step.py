"""The whole step (forward, backward, update) inside one torch.compile, on batches with or without a DataLoader."""

import torch
from common import CLASSES, WIDTH, Rows, StepLog, classifier, options, own_device
from torch.nn.functional import cross_entropy


def made(args):
    for _ in range(args.steps):
        yield torch.randn(args.micro_batch_size, WIDTH), torch.randint(CLASSES, (args.micro_batch_size,))


def main():
    args = options(("--loader", 1))
    device = own_device(args)
    model = classifier().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    @torch.compile
    def step(inputs, classes):
        loss = cross_entropy(model(inputs), classes)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    rows = Rows(args.micro_batch_size * args.steps)
    batches = torch.utils.data.DataLoader(rows, batch_size=args.micro_batch_size) if args.loader else made(args)
    log = StepLog()
    for inputs, classes in batches:
        log(step(inputs.to(device), classes.to(device)).item())


if __name__ == "__main__":
    main()
