"""An optimizer for each parameter that steps inside the backward pass, so that no gradient is kept."""

import torch
from common import Rows, StepLog, classifier, options
from torch.nn.functional import cross_entropy


def main():
    args = options()
    model = classifier()
    optimizers = {parameter: torch.optim.AdamW([parameter], lr=1e-3) for parameter in model.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    loader = torch.utils.data.DataLoader(Rows(args.micro_batch_size * args.steps), batch_size=args.micro_batch_size)
    log = StepLog()
    for inputs, classes in loader:
        loss = cross_entropy(model(inputs), classes)
        loss.backward()
        log(loss.item())


if __name__ == "__main__":
    main()
