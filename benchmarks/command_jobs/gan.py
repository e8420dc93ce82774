"""A generator and a discriminator with an optimizer each: three backward calls and two updates a step."""

import torch
from common import WIDTH, Rows, StepLog, options
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

NOISE = 64


def main():
    args = options()
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(NOISE, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
    judge = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH), nn.GELU())
    judge.append(nn.Linear(WIDTH, 1))
    of_generator = torch.optim.Adam(generator.parameters(), lr=1e-4)
    of_judge = torch.optim.Adam(judge.parameters(), lr=1e-4)
    rows = Rows(args.micro_batch_size * args.steps)
    ones, zeros = torch.ones(args.micro_batch_size, 1), torch.zeros(args.micro_batch_size, 1)
    log = StepLog()
    for real, _ in torch.utils.data.DataLoader(rows, batch_size=args.micro_batch_size):
        made = generator(torch.randn(len(real), NOISE))
        of_judge.zero_grad()
        binary_cross_entropy_with_logits(judge(real), ones).backward()
        binary_cross_entropy_with_logits(judge(made.detach()), zeros).backward()
        of_judge.step()
        of_generator.zero_grad()
        loss = binary_cross_entropy_with_logits(judge(made), ones)
        loss.backward()
        of_generator.step()
        log(loss.item())


if __name__ == "__main__":
    main()
