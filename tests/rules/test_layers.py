"""The rules of the structure: one import direction, one door for each third-party package, the public names."""

from __future__ import annotations

import ast
import functools
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import bexplore
from tests.rules.sources import syntax_nodes

PACKAGE = Path(bexplore.__file__).parent

# Room -> its parts in import order: a part imports only from parts that stand before it.
ORDER = {
    "": "errors units host estimate job config workloads trace measurement search engine command replay "
    "run diagnosis exploration actions emulated_gpu api planning guard output start_again decorator cli "
    "pytest_plugin lightning transformers __main__",
    "host": "blas_threads causes clocks secret_values logs locks json_files records accelerators "
    "torch_interfaces machine process_tree contention",
    "estimate": "kernels efficiencies dispatch collectives model processor calibrations confidence",
    "emulated_gpu": "libraries nvidia_smi environment config_environment",
    "job": "batching lengths job",
    "config": "training_step document code_keys field_types schema command workload variants config dialects "
    "json_schema hydra_tree training_script starter load",
    "config.training_script": "source parameters fields declared help_text places ranks fixed calls notebook",
    "config.dialects.cerebras": "section decoders encoders layout",
    "workloads": "torch_private lasting modules import_path parallel workload batches loader decoder hf imported",
    "trace": "torch_private cost_model communication measured absent_gpu cache kernel_shapes operations recorded "
    "convolutions operators fake_operators real_values lifetimes inductor repeated_blocks activation_budget fake_build "
    "passes program_metrics pass_times tracer",
    "measurement": "statistics interleaving probe profile",
    "search": "settings evidence space calibration posterior recommendation policy result study loop",
    "engine": "protocol process worker program_client runner open_runner",
    "command": "observer working_folder reports timing verdicts failures start attach watch judgement runner",
    "replay": "table replay",
    "run": "selection facts parts journal result run_directory fingerprint events event_records",
    "diagnosis": "bottlenecks profiled",
    "exploration": "memory_budget setup untraced emulated variants estimate finish base estimate_errors "
    "emulated_speeds recorded command job estimated",
    "actions": "apply probe trace ask_help calibrate doctor",
    "planning": "network network_timing request costs layout step cautions plan sources api evidence",
    "guard": "report baseline reference timing compare sizes snapshot pairs guard",
    "output": "table plot tables comparison guard_report plan_table event_files bexp profile_text "
    "summary live_view console report",
    "cli": "streams field_names entry options setup apply explore guard plan_options one_shot plan network offline",
}

# Package -> the only places that may import it.
DOORS = {
    "torch": {
        "workloads",
        "trace",
        "engine.worker",
        "command.observer",
        "config.training_step",
        "planning.network_timing",
    },
    "optuna": {"search.study", "search.loop"},
    "pydantic": {"config.schema", "config.field_types"},
    "ruamel": {"config.document.reader"},
    "tomlkit": {"config.document.toml"},
    "click": {"cli"},
    "jinja2": {"output.report"},
    "matplotlib": {"output.report"},
    "rich": {"cli", "output.console", "output.live_view", "output.plot"},
    "psutil": {"host", "engine.process", "command", "exploration.memory_budget", "planning.network_timing"},
    "structlog": {"host.logs"},  # any other logger writes to stdout, where results stand alone
    "transformers": {"workloads", "transformers"},
    "lightning": {"lightning"},
    "pytest": {"pytest_plugin"},
    "ray": {"engine.process.launcher"},
}

FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path) for path in FILES}


@functools.cache
def imports(path: Path) -> tuple[str, ...]:
    """Dotted names that a file imports, those inside functions and under TYPE_CHECKING included."""
    found: list[str] = []
    for node in syntax_nodes(path):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [name if name.removeprefix("bexplore.") in MODULES else node.module for name in full]
    return tuple(found)


def own_imports(path: Path) -> Iterator[str]:
    yield from (name.removeprefix("bexplore.") for name in imports(path) if name.startswith("bexplore."))


def part_of(module: str, room: str) -> str | None:
    """The name of the part of `room` that holds the module; None where it lies elsewhere or is the room's face."""
    prefix = f"{room}." if room else ""
    return module.removeprefix(prefix).split(".")[0] if module.startswith(prefix) else None


@pytest.mark.parametrize("room", ORDER)
def test_a_part_of_a_room_imports_only_from_parts_that_stand_before_it(room):
    order = ORDER[room].split()
    arrows = (
        (path, part_of(module_of(path), room), name, part_of(name, room))
        for path in FILES
        for name in own_imports(path)
    )
    back = [
        f"{module_of(path)} imports {name}"
        for path, own, name, other in arrows
        if own is not None and other is not None and order.index(own) < order.index(other)
    ]
    assert back == []


@pytest.mark.parametrize("room", ORDER)
def test_every_part_has_its_place_in_the_order(room):
    parts = {part_of(module, room) for module in MODULES if module != room} - {None}
    assert parts == set(ORDER[room].split())


@pytest.mark.parametrize("room", sorted({path.parent.relative_to(PACKAGE) for path in FILES}), ids=str)
def test_no_parts_of_a_folder_import_each_other_in_a_circle(room):
    name = ".".join(room.parts)
    imported: dict[str, set[str]] = {}
    for path in FILES:
        own = part_of(module_of(path), name)
        others = (part_of(other, name) for other in own_imports(path))
        if own is not None:
            imported.setdefault(own, set()).update(other for other in others if other not in (None, own))
    assert set(graphlib.TopologicalSorter(imported).static_order()) >= set(imported)


def test_each_third_party_package_has_its_doors():
    violations = []
    for path in FILES:
        module = module_of(path)
        for name in imports(path):
            doors = DOORS.get(name.split(".")[0])
            if doors is not None and not any(f"{module}.".startswith(f"{door}.") for door in doors):
                violations.append(f"{module} imports {name}")
    assert violations == []


def private_names_of_torch(path: Path) -> Iterator[str]:
    """Modules and names of `torch._*` that a file imports or reads."""
    yield from (name for name in imports(path) if name.startswith("torch._"))
    for node in syntax_nodes(path):
        is_of_torch = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch"
        if is_of_torch and node.attr.startswith("_") and not node.attr.startswith("__"):
            yield f"torch.{node.attr}"


def test_each_room_uses_private_interfaces_of_torch_in_one_file():
    # The observer runs in another environment: it is a room of its own.
    observer = PACKAGE / "command" / "observer"
    files = [path for path in FILES if observer not in path.parents]
    users = [(module_of(path), name) for path in files for name in private_names_of_torch(path)]
    assert sorted({f"{module} uses {name}" for module, name in users if not module.endswith("torch_private")}) == []
    assert {module for module, _ in users} == {
        "workloads.torch_private",
        "trace.torch_private",
        "engine.worker.torch_private",
    }


def test_nobody_imports_the_worker():
    outside = [path for path in FILES if not module_of(path).startswith("engine.worker")]
    assert [
        module_of(path) for path in outside for name in own_imports(path) if f"{name}.".startswith("engine.worker.")
    ] == []


def test_nobody_takes_frame_objects_of_a_thread_that_runs():
    # Following `f_back` of a thread that torch.compile runs in crashes the process now and then (CPython 3.11).
    names = {"_current_frames", "_current_exceptions"}
    assert [
        module_of(path)
        for path in FILES
        for node in syntax_nodes(path)
        if (isinstance(node, ast.Attribute) and node.attr in names) or (isinstance(node, ast.Name) and node.id in names)
    ] == []


ROOMS_BESIDE = ("guard", "planning", "emulated_gpu")
# The faces of the whole product may open any room; the others may not.
FACES = ("api", "cli", "output", "pytest_plugin", "planning", "guard")


def test_the_core_never_imports_a_room_beside_it():
    core = [path for path in FILES if module_of(path).split(".")[0] not in (*FACES, "emulated_gpu")]
    arrows = {
        f"{module_of(path)} imports {name}"
        for path in core
        for name in own_imports(path)
        if name.split(".")[0] in ROOMS_BESIDE
    }
    assert arrows == set()


def test_the_public_names_are_these_and_each_exists():
    assert sorted(bexplore.__all__) == [
        "AlreadyFinished",
        "BexploreError",
        "Config",
        "ExploreOptions",
        "Finished",
        "PlanRequest",
        "Planned",
        "ProbeFinished",
        "ProbeStarted",
        "Recommended",
        "Traced",
        "TrainingStep",
        "Work",
        "__version__",
        "explore",
        "find_fastest_batch_size",
        "load_config",
        "plan",
    ]
    for name in bexplore.__all__:
        assert getattr(bexplore, name) is not None
