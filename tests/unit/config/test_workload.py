"""`explore.parallelism` and `explore.launcher`: what they give, and what is refused with a hint."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from bexplore.config.config import Config
from bexplore.errors import UserInputError
from bexplore.host.records import from_record
from bexplore.job import Job, Parallelism
from tests.unit.config.builders import Folder, sections, trainer


def file_of(parallelism: Any, *, num_csx: Any = 8, **settings: Any) -> dict[str, Any]:
    """A file of some replicas, or of none that it names."""
    given = {} if parallelism is None else {"parallelism": parallelism}
    values = sections(num_csx=num_csx, explore={"device": "cpu"} | given | settings)
    if num_csx is None:
        del values["runconfig"]["num_csx"]
    return values


def loaded(folder: Folder, parallelism: Any, **others: Any) -> Config:
    return folder.load(file_of(parallelism, **others))


def refused(folder: Folder, parallelism: Any, **others: Any) -> str:
    return folder.refusal(file_of(parallelism, **others))


@pytest.mark.parametrize(
    ("degrees", "num_csx", "described", "num_ranks"),
    [
        ({}, 8, "FSDP over 8 ranks", 8),
        ({"data_parallel_replicate_degree": 2}, 8, "FSDP over 4 ranks, 2 copies", 8),
        ({"data_parallel_replicate_degree": 8}, 8, "DDP over 8 ranks", 8),
        ({"data_parallel_replicate_degree": 2}, None, "DDP over 2 ranks", 2),
        ({"data_parallel_shard_degree": 4}, None, "FSDP over 4 ranks", 4),
        ({"tensor_parallel_degree": 2}, 4, "FSDP over 4 ranks, tensor parallel over 2", 8),
        ({"tensor_parallel_degree": 4}, 1, "tensor parallel over 4", 4),
    ],
)
def test_the_degrees_and_the_replicas_of_the_file_give_the_ranks(folder, degrees, num_csx, described, num_ranks):
    config = loaded(folder, degrees, num_csx=num_csx)

    assert (str(config.job.parallelism), config.job.parallelism.num_ranks) == (described, num_ranks)
    assert config.num_replicas == config.job.num_replicas == config.job.parallelism.num_replicas
    assert config.warnings == ()


def test_without_the_section_replicas_are_one_device_as_many_times(folder):
    config = loaded(folder, None)

    assert config.job.parallelism == Parallelism()
    assert (config.num_replicas, config.job.parallelism.is_distributed) == (8, False)
    assert "parallelism" not in config.job.as_record()


def test_the_newer_layout_names_its_replicas_elsewhere(folder):
    shared = trainer() | {"explore": {"device": "cpu", "parallelism": {}}}
    assert str(folder.load(shared).job.parallelism) == "FSDP over 2 ranks"

    shared["explore"]["parallelism"] = {"data_parallel_shard_degree": 4}
    assert "trainer.init.backend.cluster_config.num_csx is 2" in folder.refusal(shared)


def test_every_setting_reaches_the_job_and_its_fingerprint(folder):
    sharded = {
        "fsdp_reshard_after_forward": "never",
        "mixed_precision_param": "bfloat16",
        "mixed_precision_reduce": "float32",
        "gradient_sync": "every",
        "blocks": ["decoder.blocks.*"],
        "tensor_parallel_degree": 2,
    }
    replicated = {"bucket_cap_mb": 4.0, "gradient_as_bucket_view": True, "find_unused_parameters": True}
    prints = {loaded(folder, None).job.fingerprint()}
    for degrees, settings in (({}, sharded), ({"data_parallel_replicate_degree": 8}, replicated)):
        prints.add(loaded(folder, degrees).job.fingerprint())
        for name, value in settings.items():
            job = loaded(folder, degrees | {name: value}).job
            read = getattr(job.parallelism, name)
            assert (list(read) if isinstance(read, tuple) else read) == value
            assert from_record(Job, job.as_record()) == job
            prints.add(job.fingerprint())
    names = {field.name for field in dataclasses.fields(Parallelism)}
    assert names - {*sharded, *replicated} == {"data_parallel_replicate_degree", "data_parallel_shard_degree"}
    assert len(prints) == len({*sharded, *replicated}) + 3  # one device, FSDP and DDP


def test_a_section_that_gives_one_device_is_a_warning(folder):
    (warning,) = loaded(folder, {}, num_csx=None).warnings
    assert warning.endswith("explore.parallelism gives one device: type runconfig.num_csx, or a degree above 1")


@pytest.mark.parametrize(
    ("parallelism", "num_csx", "told"),
    [
        (
            {"data_parallel_replicate_degree": 3},
            8,
            "3 copies do not divide runconfig.num_csx 8 | type a divisor of 8, or runconfig.num_csx: 6",
        ),
        ({"data_parallel_replicate_degree": 16}, 8, "type a divisor of 8, or runconfig.num_csx: 16"),
        (
            {"data_parallel_replicate_degree": 2, "data_parallel_shard_degree": 3},
            8,
            "degrees of 2 and 3 make 6 replicas, and runconfig.num_csx is 8 | type runconfig.num_csx: 6, or leave "
            "data_parallel_shard_degree out",
        ),
        (
            {"data_parallel_shard_degree": 0},
            8,
            "data_parallel_shard_degree is at least 1, or -1 for what num_csx leaves",
        ),
        (
            {"data_parallel_replicate_degree": 8, "tensor_parallel_degree": 2},
            8,
            "DistributedDataParallel takes no matrices that ranks share | shard the copies too: "
            "data_parallel_shard_degree above 1",
        ),
        ({"gradient_sync": "first"}, 8, 'explore.parallelism.gradient_sync must be last or every, not "first"'),
        ({"gradient_snyc": "last"}, 8, 'unknown key "gradient_snyc" in explore.parallelism | did you mean'),
        ({"tensor_parallel_degree": 0}, 8, "explore.parallelism.tensor_parallel_degree must be at least 1, not 0"),
        ({"bucket_cap_mb": 0, "data_parallel_replicate_degree": 8}, 8, "bucket_cap_mb must be above 0, not 0"),
        (8, 8, "explore.parallelism must be a mapping, not 8"),
        ({}, "many", 'num_csx must be a positive integer, not "many"'),
    ],
)
def test_degrees_that_do_not_fit_are_refused_with_numbers_that_do(folder, parallelism, num_csx, told):
    assert told in refused(folder, parallelism, num_csx=num_csx)


@pytest.mark.parametrize(
    ("setting", "num_copies", "kind", "described"),
    [
        ({"mixed_precision_param": "bfloat16"}, 8, "sharded parameters", "DDP over 8 ranks"),
        ({"mixed_precision_reduce": "bfloat16"}, 8, "sharded parameters", "DDP over 8 ranks"),
        ({"fsdp_reshard_after_forward": "always"}, 8, "sharded parameters", "DDP over 8 ranks"),
        ({"blocks": ["layers.*"]}, 8, "sharded parameters or tensor parallelism", "DDP over 8 ranks"),
        ({"bucket_cap_mb": 25.0}, 1, "DistributedDataParallel", "FSDP over 8 ranks"),
        ({"gradient_as_bucket_view": True}, 1, "DistributedDataParallel", "FSDP over 8 ranks"),
        ({"find_unused_parameters": True}, 1, "DistributedDataParallel", "FSDP over 8 ranks"),
    ],
)
def test_a_setting_of_another_kind_of_parallelism_is_refused(folder, setting, num_copies, kind, described):
    text = refused(folder, {"data_parallel_replicate_degree": num_copies} | setting)

    assert f"{next(iter(setting))} goes with {kind}" in text
    assert text.endswith(f"these degrees are {described} | remove it")


@pytest.mark.parametrize("launcher", [None, "none", "torchrun", "srun", "ray", "mpirun -n {num_ranks} {worker}"])
def test_ranks_are_started_by_a_launcher_or_by_the_users_own_words(folder, launcher):
    assert loaded(folder, {}, launcher=launcher).settings.launcher == launcher


@pytest.mark.parametrize(
    ("parallelism", "launcher", "told"),
    [
        ({}, "torchrum", '"torchrum" is no launcher | did you mean torchrun?'),
        ({}, "x", "known here: none, torchrun, srun, ray"),
        ({}, "x", "or a command with {worker} where the command of one rank stands"),
        (None, "torchrun", "launcher torchrun starts ranks, and explore.parallelism names none | write both"),
        ({}, "external", "explore.rendezvous names none | type explore.rendezvous: HOST:PORT, an address of this"),
    ],
)
def test_a_launcher_that_starts_no_ranks_is_refused(folder, parallelism, launcher, told):
    assert told in refused(folder, parallelism, launcher=launcher)


@pytest.mark.parametrize("address", ["node1", "node1:29400", "10.0.0.1:29400"])
def test_ranks_of_other_hosts_call_at_an_address_of_this_machine(folder, address):
    assert loaded(folder, {}, launcher="torchrun", rendezvous=address).settings.rendezvous == address


def test_ranks_that_the_user_starts_need_to_be_told_a_port(folder):
    told = refused(folder, {}, launcher="external", rendezvous="node1")
    assert "explore.rendezvous names no port: node1 | type explore.rendezvous: HOST:PORT" in told


@pytest.mark.parametrize("address", ["", "node1:", "node1:port", "node1:65536", "http://node1:29400", "node 1"])
def test_an_address_that_is_none_is_refused(folder, address):
    told = refused(folder, {}, launcher="external", rendezvous=address)
    assert f'must be an address such as "node1" or "node1:29400", not "{address}"' in told


def test_ranks_of_torchrun_alone_share_the_memory_of_this_host(folder):
    assert loaded(folder, {}, launcher="torchrun").num_ranks_here == 8
    assert {loaded(folder, {}, launcher=one).num_ranks_here for one in (None, "none", "srun", "ray")} == {1}


def command_file(**settings: Any) -> dict[str, Any]:
    words = ["python", "train.py", "--mbs", "{micro_batch_size}", "--out", "{output_dir}"]
    return {"explore": {"command": words} | settings}


def test_a_training_command_shares_its_work_itself(folder):
    text = folder.refusal(command_file(parallelism={"data_parallel_shard_degree": 2}))
    assert "explore.parallelism does not work with training commands | remove it" in text


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("precision", "bfloat16"),
        ("activation_checkpointing", "full"),
        ("activation_memory_budget", 0.5),
        ("checkpointed_modules", ["a.B"]),
        ("optimizer", {"fused": True}),
        ("compile", {"mode": "reduce-overhead"}),
        ("torch", {"cudnn_benchmark": True}),
    ],
)
def test_what_a_training_command_decides_itself_is_not_taken_silently(folder, key, value):
    text = folder.refusal(command_file(**{key: value}))
    assert f"explore.{key} does not work with training commands | remove it, and set it in the training" in text


def test_a_training_command_may_have_the_length_of_each_sample(folder):
    (folder.path.parent / "lengths.txt").write_text("7 90 12 90 3")
    command = folder.load(command_file(lengths="lengths.txt")).command

    assert command.sample_lengths == (7, 90, 12, 90, 3)


@pytest.mark.parametrize(
    ("lengths", "key"),
    [
        ({"values": [1, 2], "padding": "sorted"}, "padding"),
        ({"values": [1, 2], "weights": [1, 2]}, "weights"),
        ({"quantiles": {"0": 1, "100": 9}}, "quantiles"),
        ({"from": "loader"}, "from"),
    ],
)
def test_what_a_training_command_does_by_itself_is_no_key_of_its_lengths(folder, lengths, key):
    text = folder.refusal(command_file(lengths=lengths))
    assert f"explore.lengths.{key} does not work with training commands: they make batches of their own data" in text
    assert "| give the length of each sample, in the order of the data set, by file or values" in text


def test_a_training_command_knows_other_launchers(folder):
    assert '"torchrum" is no launcher of a command | did you mean torchrun?' in folder.refusal(
        command_file(launcher="torchrum")
    )
    assert "known here: python, torchrun, accelerate, deepspeed, srun" in folder.refusal(command_file(launcher="ray"))


def test_the_outermost_data_parallel_degree_takes_another_number_of_ranks():
    hybrid = Parallelism(data_parallel_replicate_degree=2, data_parallel_shard_degree=4, tensor_parallel_degree=2)

    assert hybrid.with_ranks(64) == dataclasses.replace(hybrid, data_parallel_shard_degree=16)
    assert str(Parallelism(data_parallel_replicate_degree=2).with_ranks(8)) == "DDP over 8 ranks"
    with pytest.raises(UserInputError, match="6 devices are not a multiple of the 4"):
        hybrid.with_ranks(6)


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("global_batch_size", "write train_input.batch_size"),
        ("replica_batch_size", "write train_input.batch_size, that of all replicas, and runconfig.num_csx"),
        ("replicas", "write runconfig.num_csx"),
        ("processes", "write runconfig.num_csx, and explore.launcher for ranks that run"),
        ("sizes_per_start", "remove it"),
    ],
)
def test_a_number_that_only_a_command_reads_is_refused_in_a_job(folder, key, hint):
    message = refused(folder, None, num_csx=1, **{key: 4})
    assert f"explore.{key} is for explore.command, and this file describes a job" in message
    assert hint in message
