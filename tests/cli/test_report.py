"""The command `report`, and its page in a browser."""

from __future__ import annotations

import json
import shutil
import subprocess
from html import escape
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from bexplore.cli.offline import report
from bexplore.measurement.probe import Observation
from bexplore.output.report.files import html, read_report_data
from bexplore.run.result import RunResult
from bexplore.run.run_directory import open_run
from tests.unit.run.builders import Page, make_run, probe

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture
def page(tmp_path) -> Page:
    return Page(html(read_report_data(make_run(tmp_path))))


def test_each_figure_alone_is_whole_xml_with_its_own_colours(tmp_path):
    done = CliRunner().invoke(
        report, [str(make_run(tmp_path).directory), "--figures", "svg", "-o", str(tmp_path / "f")]
    )
    assert done.exit_code == 0, done.exception
    files = sorted((tmp_path / "f").iterdir())
    assert [path.name for path in files] == ["confidence.svg", "memory.svg", "throughput.svg"]
    for path in files:
        root = ElementTree.fromstring(path.read_text())
        assert root.find("{http://www.w3.org/2000/svg}style") is not None


def test_png_without_matplotlib_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    run = make_run(tmp_path)
    done = CliRunner().invoke(report, [str(run.directory), "--figures", "png"])
    assert "pip install matplotlib" in done.exception.hint


def in_turns(number: int, size: int, interleaved_times_s: dict[int, tuple[float, ...]]) -> Observation:
    return probe(number, size, 400.0, interleaved_times_s=interleaved_times_s)


def in_browser(path: Path, source: str) -> subprocess.CompletedProcess:
    """Run a page's scripts; its document is in `stdout`."""
    path.write_text(source)
    flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    flags += " --disable-component-update --disable-sync --enable-logging=stderr --window-size=1300,900"
    command = [CHROMIUM, *flags.split(), f"--user-data-dir={path.parent / 'profile'}", "--dump-dom", path.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


@pytest.mark.external
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: the page cannot be laid out")
def test_in_a_browser_no_table_is_cut_on_a_wide_a_middling_or_a_narrow_screen(tmp_path):
    run = make_run(tmp_path)
    run.journal.append(in_turns(4, 4, {4: (0.020, 0.021), 8: (0.032, 0.033)}))
    page = escape(html(read_report_data(run)), quote=True)
    frames = "".join(f'<iframe width="{width}" height="800" srcdoc="{page}"></iframe>' for width in (1200, 800, 400))
    check = """<script>
    addEventListener("load", function () {
      document.title = "cut:" + Array.from(document.querySelectorAll("iframe")).map(function (frame) {
        var inside = frame.contentDocument, boxes = Array.from(inside.querySelectorAll(".scroll"));
        boxes.push(inside.documentElement);
        return boxes.length + "/" + boxes.filter(function (box) { return box.scrollWidth > box.clientWidth; }).length;
      }).join(" ") + ";";
    });
    </script>"""
    done = in_browser(tmp_path / "frames.html", f"<!doctype html><title>no</title>{frames}{check}")
    assert "<title>cut:6/0 6/0 6/0;</title>" in done.stdout


@pytest.mark.external
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine: the page's script cannot be run")
def test_in_a_browser_the_page_runs_without_an_error_and_hovering_shows_the_numbers(tmp_path):
    source = html(read_report_data(make_run(tmp_path)))
    check = """<script>
    var mark = document.querySelector(".wide [data-tip]"), before = document.getElementById("tip").hidden;
    mark.dispatchEvent(new MouseEvent("mouseover", {bubbles: true}));
    var tip = document.getElementById("tip");
    document.title = "seen:" + before + ":" + tip.hidden + ":" + (tip.textContent === mark.dataset.tip);
    </script></body>"""
    done = in_browser(tmp_path / "report.html", source.replace("</body>", check))
    assert "<title>seen:true:false:true</title>" in done.stdout
    assert "CONSOLE" not in done.stderr


def compared(*arguments: object) -> str:
    done = CliRunner().invoke(report, [str(one) for one in arguments])
    assert done.exit_code == 0, done.exception
    return done.output


@pytest.fixture
def two_runs(tmp_path) -> tuple[Path, Path]:
    """Two runs, of which the second is faster at its answer on another device."""
    before, after = make_run(tmp_path / "before"), make_run(tmp_path / "after")
    for run, factor in ((before, 1), (after, 2)):
        speeds = [
            {
                "micro_batch_size": size,
                "samples_per_s": factor * speed,
                "interval": [0.9 * factor * speed, factor * speed],
            }
            for size, speed in ((1, 100.0), (8, 400.0), (9 if factor == 1 else 10, 300.0))
        ]
        told = run.result().as_record()
        run.write_result(RunResult.from_record(told | {"samples_per_s": factor * 400.0, "speeds": speeds}))
    meta = json.loads((after.directory / "meta.json").read_text())
    meta["environment"]["torch"] = "2.14.0"
    (after.directory / "meta.json").write_text(json.dumps(meta))
    return before.directory, after.directory


def test_two_runs_are_compared_by_answer_by_size_and_by_what_differs(two_runs):
    text = compared(*two_runs)

    assert text.splitlines()[0].split() == [
        "run",
        "size",
        "samples/s",
        "over",
        "before",
        "confidence",
        "peak",
        "memory",
    ]
    assert "2.00x" in text and "1.00x" in text
    assert "faster" in text
    assert "torch: 2.13.0 -> 2.14.0" in text
    record = json.loads(compared(*two_runs, "--json"))
    assert record["event"] == "comparison"
    assert [one["run"] for one in record["runs"]] == [str(path) for path in two_runs]
    assert record["runs"][1]["over_first"] == 2.0
    assert record["runs"][0]["differences"] == []
    assert [one["micro_batch_size"] for one in record["sizes"]] == [1, 8]
    for size in record["sizes"]:
        assert size["samples_per_s"][1] == 2 * size["samples_per_s"][0]


def test_a_comparison_is_markdown_too_and_a_file(two_runs, tmp_path):
    assert compared(*two_runs, "--markdown").startswith("### bexplore: runs compared\n\n| run |")
    path = tmp_path / "compared.md"
    assert compared(*two_runs, "--markdown", "-o", path) == f"{path}\n"
    assert "| run |" in path.read_text()


def test_runs_that_ran_no_size_in_common_are_compared_by_their_answers_alone(two_runs):
    before, after = two_runs
    run = open_run(after)
    told = run.result().as_record()
    told["speeds"] = []
    run.write_result(RunResult.from_record(told))

    assert "not told apart" not in compared(before, after)
    assert json.loads(compared(before, after, "--json"))["sizes"] == []


def test_a_run_that_is_named_by_its_folder_and_its_log_is_one(two_runs):
    before, after = two_runs
    log = before.with_name(f"{before.name}.log")
    assert log.exists()

    assert compared(before, log, after) == compared(before, after)
    assert compared(before, log).endswith("report.html\n")


@pytest.mark.parametrize(("which", "words"), [("unfinished", "has no answer yet"), ("figures", "of one run")])
def test_what_cannot_be_compared_is_refused(two_runs, tmp_path, which, words):
    before, _ = two_runs
    other = make_run(tmp_path / "unfinished", finished=False).directory if which == "unfinished" else two_runs[1]
    arguments = [str(before), str(other)]
    done = CliRunner().invoke(report, [*arguments, *(["--figures", "svg"] if which == "figures" else [])])
    assert words in str(done.exception)
    assert done.exception.hint
