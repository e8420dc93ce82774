"""A loop with Accelerate, started by `accelerate launch`."""

import torch
from accelerate import Accelerator
from common import Rows, StepLog, classifier, options
from torch.nn.functional import cross_entropy


def main():
    args = options()
    accelerator = Accelerator(cpu=args.device == "cpu", gradient_accumulation_steps=args.accumulation)
    model = classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rows = Rows(args.micro_batch_size * args.accumulation * args.steps * accelerator.num_processes)
    loader = torch.utils.data.DataLoader(rows, batch_size=args.micro_batch_size)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    log, loss_of_step = StepLog(), 0.0
    for inputs, classes in loader:
        with accelerator.accumulate(model):
            loss = cross_entropy(model(inputs), classes)
            accelerator.backward(loss)
            loss_of_step += loss.item()
            optimizer.step()
            if accelerator.sync_gradients:
                if accelerator.is_main_process:
                    log(loss_of_step)
                loss_of_step = 0.0
            optimizer.zero_grad()
    accelerator.save_model(model, args.out)


if __name__ == "__main__":
    main()
