"""Gradients of torch.autograd.grad, and an optimizer that is no torch.optim.Optimizer."""

import torch
from common import Rows, StepLog, classifier, options
from torch.nn.functional import cross_entropy


class Descent:
    """Plain gradient descent, written by hand."""

    def __init__(self, parameters, rate):
        self.parameters, self.rate = list(parameters), rate

    @torch.no_grad()
    def step(self, gradients):
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter -= self.rate * gradient


def main():
    args = options()
    model = classifier()
    optimizer = Descent(model.parameters(), rate=1e-2)
    loader = torch.utils.data.DataLoader(Rows(args.micro_batch_size * args.steps), batch_size=args.micro_batch_size)
    log = StepLog()
    for inputs, classes in loader:
        loss = cross_entropy(model(inputs), classes)
        optimizer.step(torch.autograd.grad(loss, optimizer.parameters))
        log(loss.item())


if __name__ == "__main__":
    main()
