"""Trainings on emulated devices, with PyTorch's own allocator, compiler and distributed wrappers."""

from __future__ import annotations

import pytest

GIB = 2**30

STEP = """
    import torch
    from torch import nn

    model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.LayerNorm(2048), nn.Linear(2048, 512)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    parameter_bytes = sum(parameter.nbytes for parameter in model.parameters())

    def train(step_model, size, num_steps=3):
        torch.cuda.reset_peak_memory_stats()
        for _ in range(num_steps):
            step_model(torch.randn(size, 512, device="cuda")).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()
"""


def test_a_training_step_takes_more_memory_at_a_larger_size(emulate):
    small, large, states = emulate(
        STEP
        + """
    print(train(model, 64))
    print(train(model, 4096))
    print(sum(state["exp_avg"].nbytes for state in optimizer.state.values()) == parameter_bytes)
    """
    )
    wide_bytes = 4096 * 2048 * 4  # of one wide layer's activations; three are kept, and gradients come beside them
    assert 3 * wide_bytes <= int(large) - int(small) <= 6 * wide_bytes
    assert states == "True"


def test_a_compiled_step_takes_less_memory_and_runs_kernels_of_triton(emulate):
    eager, compiled, num_kernels = emulate(
        STEP
        + """
    print(train(model, 4096))
    print(train(torch.compile(model), 4096))
    from pathlib import Path
    import os
    print(len(list(Path(os.environ["TRITON_CACHE_DIR"]).rglob("*.cubin"))))
    """
    )
    assert int(compiled) < int(eager)
    assert int(num_kernels) >= 1


def test_a_captured_graph_is_replayed(emulate):
    assert emulate(
        STEP
        + """
    x = torch.randn(64, 512, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            model(x).sum().backward()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        model(x).sum().backward()
    graph.replay()
    torch.cuda.synchronize()
    print(torch.cuda.memory_reserved() > parameter_bytes)
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            model(x).sum().item()
    except RuntimeError as error:
        print(str(error).splitlines()[0])
    print(torch.randn(3, device="cuda").shape[0])
    """
    ) == ["True", "CUDA error: operation failed due to a previous error during capture", "3"]


def test_compiled_graphs_are_recorded_and_replayed(emulate):
    (recorded,) = emulate(
        STEP
        + """
    compiled = torch.compile(model, mode="reduce-overhead")
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        train(compiled, 64, 1)
    from torch._inductor.cudagraph_trees import get_manager
    print(get_manager(0, create_if_none_exists=False) is not None)
    """
    )
    assert recorded == "True"


def test_convolutions_normalization_and_attention_run_on_cudnn(emulate):
    assert emulate(
        """
        import torch
        from torch import nn
        from torch.nn.attention import SDPBackend, sdpa_kernel

        layers = nn.Sequential(
            nn.Conv2d(3, 16, 7, 2, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.ConvTranspose2d(16, 16, 3), nn.Flatten()
        ).cuda()
        for memory_format in (torch.contiguous_format, torch.channels_last):
            x = torch.randn(4, 3, 64, 64, device="cuda").to(memory_format=memory_format)
            with torch.autocast("cuda", dtype=torch.bfloat16):
                layers(x).sum().backward()
        query = torch.randn(2, 8, 256, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
            with sdpa_kernel([backend]):
                nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True).sum().backward()
        torch.cuda.synchronize()
        print(torch.backends.cudnn.is_available(), layers[0].weight.grad.shape == layers[0].weight.shape)
        """
    ) == ["True True"]


def test_recurrent_layers_transforms_and_sparse_products_run(emulate):
    assert emulate(
        """
        import torch
        from torch import nn

        layers = nn.LSTM(32, 64, 2, batch_first=True, bidirectional=True).cuda()
        outputs, _ = layers(torch.randn(4, 10, 32, device="cuda"))
        outputs.sum().backward()
        print(tuple(outputs.shape), all(parameter.grad is not None for parameter in layers.parameters()))
        square = torch.randn(16, 16, device="cuda")
        torch.fft.rfft2(square).abs().sum()
        for name in ("cholesky", "qr", "svd", "eigh", "inv", "eigvals"):
            getattr(torch.linalg, name)(square)
        stacked = torch.randn(3, 16, 16, device="cuda")
        torch.linalg.qr(stacked), torch.linalg.lstsq(stacked, stacked), torch.linalg.solve(stacked, stacked)
        torch.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], (16, 16)).cuda() @ square
        torch.special.i1(square)
        """
    ) == ["(4, 10, 128) True"]


def test_a_gradient_scaler_steps_and_optimizers_have_their_states(emulate):
    assert emulate(
        STEP
        + """
    scaler = torch.amp.GradScaler("cuda")
    for _ in range(2):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(torch.randn(8, 512, device="cuda")).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    print(len(optimizer.state) == len(list(model.parameters())))
    """
    ) == ["True"]


def test_the_scale_of_a_gradient_scaler_grows_as_on_a_device(emulate):
    lines = emulate(
        """
        import torch
        from torch import nn
        model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(40)]).cuda()  # more kernels than are remembered
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scaler = torch.amp.GradScaler("cuda", init_scale=1024.0, growth_interval=2)
        for step in range(5):
            scaler.scale(model(torch.randn(4, 8, device="cuda")).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            print(scaler.get_scale(), scaler._growth_tracker.item())
        """
    )
    assert lines == ["1024.0 1", "2048.0 0", "2048.0 1", "4096.0 0", "4096.0 1"]


@pytest.mark.parametrize("setting", ["expandable_segments:True", "backend:cudaMallocAsync"])
def test_another_allocator_keeps_to_the_capacity_too(emulate, setting):
    assert emulate(
        STEP
        + """
    train(model, 64)
    held = [torch.empty(2**30, dtype=torch.uint8, device="cuda") for _ in range(5)]
    try:
        torch.empty(4 * 2**30, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError as error:
        print("out of memory" in str(error))
    del held
    torch.cuda.empty_cache()
    print(torch.cuda.mem_get_info()[0] > 6 * 2**30)
    """,
        environment={"PYTORCH_CUDA_ALLOC_CONF": setting},
        memory_bytes=8 * GIB,
    ) == ["True", "True"]


def test_a_profile_ends(emulate, tmp_path):
    (num_events,) = emulate(
        STEP
        + f"""
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], profile_memory=True) as profiled:
        train(model, 8, 1)
    profiled.export_chrome_trace({str(tmp_path / "trace.json")!r})
    print(len(profiled.events()))
    """
    )
    assert int(num_events) > 10


def test_a_tensor_reaches_another_process(emulate):
    assert emulate(
        """
        import torch

        def receive(queue, done):
            print(queue.get().tolist(), flush=True)
            done.set()

        if __name__ == "__main__":
            context = torch.multiprocessing.get_context("spawn")
            queue, done = context.Queue(), context.Event()
            process = context.Process(target=receive, args=(queue, done))
            process.start()
            sent = torch.arange(3).cuda()
            queue.put(sent)
            done.wait()
            process.join()
        """
    ) == ["[0, 1, 2]"]


RANKS = """
    import os, torch
    from torch import distributed, nn
    from torch.distributed.fsdp import fully_shard

    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", device_id=torch.device("cuda", rank))

    def tell(*values):  # in one piece: both ranks write to one pipe
        os.write(1, (" ".join(str(value) for value in values) + "\\n").encode())

    def made():
        return nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(4)]).cuda()

    def train(model):
        optimizer = torch.optim.AdamW(model.parameters())
        torch.cuda.reset_peak_memory_stats()
        for _ in range(2):
            model(torch.randn(8, 1024, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() >> 20
"""


def of_ranks(emulate, program: str, num_ranks: int = 2) -> list[str]:
    launcher = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}")
    return sorted(emulate(RANKS + program, launcher=launcher, num_devices=num_ranks))


def test_two_ranks_exchange_numbers_and_objects(emulate):
    assert of_ranks(
        emulate,
        """
    total = torch.tensor([rank + 1.0]).cuda()
    distributed.all_reduce(total)
    found = [None, None]
    distributed.all_gather_object(found, {"rank": rank})
    told = [{"from": "the first"} if rank == 0 else None]
    distributed.broadcast_object_list(told, 0)
    parts = [torch.empty(1, dtype=torch.long, device="cuda") for _ in range(2)]
    distributed.all_gather(parts, torch.tensor([10 + rank]).cuda())
    message = torch.tensor([rank * 7]).cuda()
    other = torch.empty_like(message)
    sent = distributed.P2POp(distributed.isend, message, 1 - rank)
    received = distributed.P2POp(distributed.irecv, other, 1 - rank)
    for work in distributed.batch_isend_irecv([sent, received]):
        work.wait()
    tell(rank, total.item(), found, told, [part.item() for part in parts], other.item())
    distributed.destroy_process_group()
    """,
    ) == [
        f"{rank} 3.0 [{{'rank': 0}}, {{'rank': 1}}] [{{'from': 'the first'}}] [10, 11] {(1 - rank) * 7}"
        for rank in range(2)
    ]


def test_ddp_trains_on_two_ranks(emulate):
    lines = of_ranks(
        emulate,
        """
    tell(rank, train(nn.parallel.DistributedDataParallel(made(), device_ids=[rank])) > 16)
    distributed.destroy_process_group()
    """,
    )
    assert lines == ["0 True", "1 True"]


def test_fsdp2_and_hsdp_hold_a_share_of_the_parameters_on_each_rank(emulate):
    lines = of_ranks(
        emulate,
        """
    from torch.distributed.device_mesh import init_device_mesh
    for shape in ((1, 4), (2, 2)):
        mesh = init_device_mesh("cuda", shape, mesh_dim_names=("replicate", "shard"))
        model = made()
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        train(model)
        shares = {parameter.to_local().numel() * shape[1] / parameter.numel() for parameter in model.parameters()}
        tell(rank, shape, shares)
    distributed.destroy_process_group()
    """,
        num_ranks=4,
    )
    assert lines == sorted(f"{rank} {shape} {{1.0}}" for rank in range(4) for shape in ((1, 4), (2, 2)))


def test_a_rank_that_dies_ends_the_wait_of_the_others(emulate):
    lines = emulate(
        RANKS
        + """
    if rank == 1:
        os._exit(3)
    try:
        total = torch.ones(1, device="cuda")
        distributed.all_reduce(total)
    except distributed.DistBackendError as error:
        tell("remote process exited" in str(error))
    """,
        launcher=("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"),
        num_devices=2,
        status=1,
    )
    assert lines in (["True"], [])  # none where the launcher ended the first rank before
