from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from html import unescape

import pytest
from click.testing import CliRunner

from bexplore.cli import main
from bexplore.cli.plan import plan
from bexplore.errors import BexploreError
from bexplore.output.plan_table import plan_table
from bexplore.output.report.page import html, markdown
from bexplore.output.report.report_data import read_report_data
from bexplore.planning.costs import OtherSettings
from bexplore.planning.plan import make_plans
from bexplore.planning.request import PlanRequest
from bexplore.run.run_directory import open_run
from tests.unit.planning.builders import costs, traced
from tests.unit.run.builders import make_run


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
        (("--devices", "3"), "--devices 2 or 4"),
        (("--devices", "3"), "--batch-size 63 or 66"),
        (("--devices", "128"), "--batch-size 128, or --devices 64"),
        (("--epochs", "nan", "--dataset-size", "10"), "--epochs must be a number above 0"),
        (("--epochs", "1e300", "--dataset-size", "10"), "at most 1,000,000"),
        (("--epochs", "two", "--dataset-size", "10"), "--epochs must be a number"),
        (("--price-per-device-hour", "nan"), "--price-per-device-hour must be"),
        (("--effective-time", "nan"), "--effective-time must be"),
        (("--effective-time", "1.5"), "at most 1"),
        (("--overlap", "nan"), "--overlap must be"),
        (("--steps", "1.5"), "--steps 1 or 2"),
        (("--until", "30"), "type --until 30d"),
        (("--batch-size", "1,000,000"), "--batch-size 1000000"),
        (("--bandwidth", "50"), "50GB/s"),
        (("--bandwidth", "50gb/s"), "is ambiguous: write Gbit/s or GB/s"),
        (("--tensor-parallel", "1e20"), "--tensor-parallel"),
        (("--pipeline-stages", "0"), "--pipeline-stages"),
        (("--device-name", "nothing"), "measured on its own"),
        (("--set", "explore.seed=3"), "measured as it is"),
    ],
)
def test_an_impossible_wish_is_one_error_with_what_to_type(run, arguments, words):
    with pytest.raises(BexploreError) as error:
        plan.main([str(run), *arguments], standalone_mode=False)
    assert words in f"{error.value.message} {error.value.hint}"
    assert error.value.hint
    assert error.value.exit_code == 2


def test_lines_of_some_plans_name_their_devices_and_what_is_refused_names_what_to_type(run):
    text = printed(run, "--tokens", "1B", "--devices", "1,3,8", "--bandwidth", "100GB/s")
    assert "basis (8 devices): communication" in text
    assert "basis (1 devices)" not in text
    assert "  3, batch 64: a global batch of 64 samples cannot be divided among 3 replicas" in text
    assert "type --batch-size 63 or 66, or --devices 2 or 4" in text


def test_one_device_among_several_is_one_device(run):
    text = printed(run, "--devices", "1,64", "--bandwidth", "400Gbit/s", "--batch-size", "64")
    assert "(64 devices)" in text
    only_one = printed(run, "--devices", "1,64", "--batch-size", "64,128")
    assert "1 devices" not in only_one


def test_bits_of_a_bandwidth_are_an_eighth_of_its_bytes(run):
    def network(text):
        return json.loads(printed(run, "--devices", "2", "--bandwidth", text, "--json").splitlines()[0])["network"]

    assert network("400Gbit/s") == network("50GB/s") == "50 GB/s of bus bandwidth, as stated"


@pytest.mark.parametrize("written", [html, markdown], ids=["html", "markdown"])
def test_a_report_has_what_its_plan_rests_on_and_its_cautions(run, written):
    made = make_plans(costs(), PlanRequest()).plans[0]
    text = unescape(written(dataclasses.replace(read_report_data(open_run(run)), plan=made)))
    assert made.basis and made.cautions
    assert [line for line in (*made.basis, *made.cautions) if line not in text] == []


def test_other_settings_of_a_trace_are_compared_by_their_operations():
    other = OtherSettings(settings={"checkpointing": True}, micro_batch_size=8, time_share=1.3, is_measured=False)
    text = plan_table(make_plans(traced(other_settings=(other,)), PlanRequest(mfu=0.4)))
    assert "1.30x the time of a sample at size 8" in text
    assert "by the operations of the trace" in text


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
