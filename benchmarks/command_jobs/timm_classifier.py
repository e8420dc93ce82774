"""A model of timm with its optimizer, scheduler, loss and moving average of the weights, on random images."""

import importlib.util
import sys
import types

import torch
from common import CLASSES, StepLog, options, own_device


class AnyName(type):
    """A class that has each attribute that is asked for."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return AnyName(name, (torch.nn.Module,), {})


class StandIn(types.ModuleType):
    """A module of torchvision: timm imports its names, and this training uses none of them."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return AnyName(name, (torch.nn.Module,), {})


if importlib.util.find_spec("torchvision") is None:
    for name in ("", ".ops", ".ops.misc", ".transforms", ".transforms.functional", ".datasets"):
        sys.modules[f"torchvision{name}"] = StandIn(f"torchvision{name}")
        sys.modules[f"torchvision{name}"].__path__ = []

import timm  # noqa: E402 - the stand-in must be there before it
import timm.optim  # noqa: E402 - likewise
import timm.scheduler  # noqa: E402 - likewise
import timm.utils  # noqa: E402 - likewise
from timm.loss import LabelSmoothingCrossEntropy  # noqa: E402 - likewise


class Images(torch.utils.data.Dataset):
    """Random images with a class each."""

    def __init__(self, length, side):
        self.length, self.side = length, side

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.rand(3, self.side, self.side, generator=torch.Generator().manual_seed(index)), index % CLASSES


def main():
    args = options(("--model", "resnet18"), ("--side", 64))
    device = own_device(args)
    torch.manual_seed(0)
    model = timm.create_model(args.model, num_classes=CLASSES).to(device, memory_format=torch.channels_last)
    optimizer = timm.optim.create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    scheduler, _ = timm.scheduler.create_scheduler_v2(optimizer, num_epochs=10, updates_per_epoch=args.steps)
    average = timm.utils.ModelEmaV3(model)
    loss_function = LabelSmoothingCrossEntropy().to(device)
    scaler = timm.utils.NativeScaler(device=args.device)
    rows = Images(args.micro_batch_size * args.steps, args.side)
    log = StepLog()
    for step, (images, classes) in enumerate(torch.utils.data.DataLoader(rows, batch_size=args.micro_batch_size)):
        images, classes = images.to(device, memory_format=torch.channels_last), classes.to(device)
        with torch.autocast(args.device, torch.float16, enabled=args.device == "cuda"):
            loss = loss_function(model(images), classes)
        optimizer.zero_grad()
        scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
        average.update(model)
        scheduler.step_update(step + 1)
        log(loss.item())


if __name__ == "__main__":
    main()
