from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from bexplore.cli import main
from bexplore.cli.plan import plan
from bexplore.errors import BexploreError
from tests.run_builders import make_run


@pytest.fixture
def run(tmp_path):
    """A finished run of a job with a global batch of 64."""
    run = make_run(tmp_path)
    (run.directory / "meta.json").write_text(json.dumps(run.meta() | {"batch_size": 64}))
    return run.directory


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(plan, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_a_table_has_a_line_for_each_number_of_devices(run):
    text = printed(run, "--tokens", "1B", "--devices", "1,2,2x4", "--bandwidth", "100GB/s")
    rows = [line.split() for line in text.splitlines() if line.startswith("  ")]
    assert [row[0] for row in rows] == ["devices", "1", "2", "8"]
    assert "device-hours" in rows[0]
    assert "(2x4)" in text


def test_a_column_without_any_value_is_left_out(run):
    assert "price" not in printed(run)
    assert "price" in printed(run, "--tokens", "1B", "--price-per-device-hour", "2")


def test_json_has_one_event_a_line(run):
    lines = printed(run, "--tokens", "1B", "--devices", "1,3", "--json").splitlines()
    events = [json.loads(line) for line in lines]
    assert [event["event"] for event in events] == ["training_plan", "training_plan_refused"]
    assert events[0]["origin"].startswith("measured")
    assert events[0]["mfu"] == pytest.approx(events[0]["samples_per_s"] * 1e12 / 989e12)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--tokens", "1B", "--steps", "3"), "cannot be mixed"),
        (("--epochs", "2"), "--dataset-size"),
        (("--tokens", "many"), "number of things"),
        (("--devices", "0"), "--devices"),
        (("--until", "30d"), "how much is trained"),
        (("--until", "1s", "--tokens", "1B"), "the fastest takes"),
        (("--batch-size", "7 tokens"), "holds no sample"),
        (("--mfu", "0.4"), "was measured"),
        (("--bandwidth", "1GB/s", "--network", "n.json"), "keep one"),
        (("--network", "n.json"), "cannot read"),
        (("--throughput", "30"), "samples or tokens per second"),
        (("--devices", "3"), "nearest"),
    ],
)
def test_an_impossible_wish_is_one_error_with_what_to_type(run, arguments, words):
    with pytest.raises(BexploreError) as error:
        plan.main([str(run), *arguments], standalone_mode=False)
    assert words in f"{error.value.message} {error.value.hint}"
    assert error.value.hint
    assert error.value.exit_code == 2


def test_a_path_that_is_neither_a_run_nor_a_file_is_an_error(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["plan", str(tmp_path / "nothing.yaml")])
    assert ended.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_plan_of_a_run_imports_neither_the_schema_of_configurations_nor_the_console_nor_torch(run):
    program = (
        "import sys\nfrom bexplore.cli import main\ntry:\n    main(sys.argv[1:])\nfinally:\n    print(*sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "plan", str(run), "--steps", "10"], capture_output=True, text=True, check=True
    )
    modules = set(done.stdout.splitlines()[-1].split())
    assert "bexplore.planning.plan" in modules
    assert modules & {"bexplore.config.schema", "bexplore.config.load", "structlog", "rich", "torch", "optuna"} == set()
