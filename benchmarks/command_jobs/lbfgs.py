"""LBFGS: the optimizer calls a closure, and so the backward, several times a step."""

import torch
from common import Rows, StepLog, classifier, options
from torch.nn.functional import cross_entropy


def main():
    args = options()
    model = classifier()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=4)
    loader = torch.utils.data.DataLoader(Rows(args.micro_batch_size * args.steps), batch_size=args.micro_batch_size)
    log = StepLog()
    for inputs, classes in loader:

        def closure(inputs=inputs, classes=classes):
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs), classes)
            loss.backward()
            return loss

        log(optimizer.step(closure).item())


if __name__ == "__main__":
    main()
