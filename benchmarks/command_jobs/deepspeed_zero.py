"""DeepSpeed's engine with any ZeRO stage, started by its launcher on two processes."""

import deepspeed
from common import BACKENDS, Rows, StepLog, classifier, options, own_device
from torch import distributed
from torch.nn.functional import cross_entropy


def main():
    args = options(("--stage", 0), ("--local_rank", -1))
    device = own_device(args)
    deepspeed.init_distributed(BACKENDS[args.device])
    ranks = distributed.get_world_size()
    model = classifier()
    engine, _, loader, _ = deepspeed.initialize(
        model=model,
        model_parameters=model.parameters(),
        training_data=Rows(args.micro_batch_size * args.accumulation * args.steps * ranks),
        dist_init_required=False,
        config={
            "train_micro_batch_size_per_gpu": args.micro_batch_size,
            "gradient_accumulation_steps": args.accumulation,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
            "zero_optimization": {"stage": args.stage},
        },
    )
    log, loss_of_step = StepLog(), 0.0
    for inputs, classes in loader:
        inputs, classes = inputs.to(device), classes.to(device)
        loss = cross_entropy(engine(inputs), classes)
        engine.backward(loss)
        loss_of_step += loss.item()
        last = engine.is_gradient_accumulation_boundary()
        engine.step()
        if last:
            if distributed.get_rank() == 0:
                log(loss_of_step)
            loss_of_step = 0.0


if __name__ == "__main__":
    main()
