"""The command `report`, and its page in a browser."""

from __future__ import annotations

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
