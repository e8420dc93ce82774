"""Data parallel in two Ray actors on a cluster that `ray.init` starts."""

import socket

import ray
import torch
from common import Rows, StepLog, classifier, options
from torch import distributed
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

RANKS = 2


@ray.remote(num_cpus=1)
class Trainer:
    """One rank."""

    def __init__(self, rank, port):
        torch.set_num_threads(1)
        distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
        self.rank = rank

    def train(self, args):
        model = DistributedDataParallel(classifier())
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        rows = Rows(args.micro_batch_size * args.accumulation * args.steps * RANKS)
        loader = DataLoader(rows, batch_size=args.micro_batch_size, sampler=DistributedSampler(rows, RANKS, self.rank))
        log, loss_of_step = StepLog(), 0.0
        for micro_batch, (inputs, classes) in enumerate(loader, start=1):
            loss = cross_entropy(model(inputs), classes) / args.accumulation
            loss.backward()
            loss_of_step += loss.item()
            if micro_batch % args.accumulation == 0:
                optimizer.step()
                if self.rank == 0:
                    log(loss_of_step)
                optimizer.zero_grad()
                loss_of_step = 0.0


def main():
    args = options()
    ray.init(num_cpus=RANKS, include_dashboard=False)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    actors = [Trainer.remote(rank, port) for rank in range(RANKS)]
    ray.get([actor.train.remote(args) for actor in actors])


if __name__ == "__main__":
    main()
