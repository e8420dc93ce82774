"""The whole step (forward, backward, update) inside one torch.compile, on batches that no DataLoader makes."""

import torch
from common import CLASSES, WIDTH, StepLog, classifier, options
from torch.nn.functional import cross_entropy


def main():
    args = options()
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    @torch.compile
    def step(inputs, classes):
        loss = cross_entropy(model(inputs), classes)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    log = StepLog()
    for _ in range(args.steps):
        inputs = torch.randn(args.micro_batch_size, WIDTH)
        log(step(inputs, torch.randint(CLASSES, (args.micro_batch_size,))).item())


if __name__ == "__main__":
    main()
