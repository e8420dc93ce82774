"""A loop whose steps take `--seconds`, with what trainings do without gradients in each; it may sample at times."""

import copy
import time

import torch
from common import Rows, StepLog, classifier, options
from torch.nn.functional import cross_entropy


def main():
    args = options(("--seconds", 1.2), ("--epoch", 10**6), ("--sampling", 0.0))
    model, log = classifier(), StepLog()
    average, optimizer = copy.deepcopy(model), torch.optim.AdamW(model.parameters(), lr=1e-3)
    callbacks, accuracies = [log], []
    while log.step < args.steps:
        rows = Rows(args.micro_batch_size * min(args.epoch, args.steps))
        for inputs, classes in torch.utils.data.DataLoader(rows, batch_size=args.micro_batch_size):
            outputs = model(inputs)
            loss = cross_entropy(outputs, classes)
            with torch.no_grad():
                accuracies.append((outputs.argmax(1) == classes).float().mean().item())
            time.sleep(args.seconds)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                for kept, parameter in zip(average.parameters(), model.parameters(), strict=True):
                    kept.lerp_(parameter, 0.1)
            for callback in callbacks:
                callback(loss.item())
        sample(model, args.sampling, log)
    torch.save(model.state_dict(), args.out / "model.pt")


@torch.no_grad()
def sample(model: torch.nn.Module, seconds: float, log: StepLog) -> None:
    """Call the model on random rows for so long; the log counts that to no step."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        model(torch.randn(16, 512, generator=torch.Generator().manual_seed(0)))
    log.before = time.perf_counter()


if __name__ == "__main__":
    main()
