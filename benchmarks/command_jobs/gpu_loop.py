"""A loop with what a GPU alone has: graphs, pinned memory, a profiler, NVML; an encoder in autocast to bfloat16."""

import contextlib

import torch
from common import MODELS, Rows, StepLog, options, own_device
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile, schedule

PROFILED = (ProfilerActivity.CPU, ProfilerActivity.CUDA)


def captured(model, args, device):
    """Return the model with its forward and backward as graphs that are replayed, in autocast."""
    sample = next(iter(torch.utils.data.DataLoader(Rows(args.micro_batch_size), batch_size=args.micro_batch_size)))[0]
    with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
        return torch.cuda.make_graphed_callables(model, (sample.to(device),))


def made(args, device):
    model = MODELS[args.model]().to(device)
    if args.mode == "captured":
        return captured(model, args, device)
    return model if args.mode == "eager" else torch.compile(model, mode=args.mode)


def profiler(args):
    if not args.profile:
        return contextlib.nullcontext()
    trace = str(args.out / "trace.json")
    times = schedule(wait=1, warmup=1, active=2, repeat=1)
    return profile(activities=PROFILED, schedule=times, on_trace_ready=lambda found: found.export_chrome_trace(trace))


def device_use(device):
    """Return what a training's own log of its device asks: percent, degrees, watts, megahertz and bytes."""
    numbers = torch.cuda.utilization(device), torch.cuda.memory_usage(device), torch.cuda.temperature(device)
    more = torch.cuda.power_draw(device), torch.cuda.clock_rate(device), *torch.cuda.mem_get_info(device)
    return (*numbers, *more, torch.cuda.device_memory_used(device), torch.cuda.list_gpu_processes(device))


def main():
    args = options(("--model", "encoder"), ("--mode", "eager"), ("--workers", 0), ("--profile", 0), ("--nvml", 0))
    device = own_device(args)
    model = made(args, device)
    has_graphs = args.mode != "eager"
    for parameter in model.parameters() if has_graphs else ():
        parameter.grad = torch.zeros_like(parameter)  # graphs add to gradients that stay in their place
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    rows = Rows(args.micro_batch_size * args.accumulation * args.steps)
    loader = torch.utils.data.DataLoader(
        rows, batch_size=args.micro_batch_size, num_workers=args.workers, pin_memory=args.workers > 0
    )
    log = StepLog()
    with profiler(args) as profiled:
        for micro_batch, (inputs, classes) in enumerate(loader, start=1):
            inputs, classes = inputs.to(device, non_blocking=True), classes.to(device, non_blocking=True)
            torch.compiler.cudagraph_mark_step_begin()
            with torch.autocast("cuda", torch.bfloat16, cache_enabled=args.mode != "captured"):
                loss = cross_entropy(model(inputs).float(), classes) / args.accumulation
            loss.backward()
            if micro_batch % args.accumulation:
                continue
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=not has_graphs)
            log(loss.item())
            if args.nvml:
                print(device_use(device), flush=True)
            if profiled is not None:
                profiled.step()
    torch.save(model.state_dict(), args.out / "model.pt")


if __name__ == "__main__":
    main()
