"""Help without torch."""

from __future__ import annotations

import subprocess
import sys

from tests.builders import ROOT


def test_the_help_of_the_package_shows_the_protocol_without_torch():
    script = (
        "import bexplore, pydoc, sys; print(pydoc.plain(pydoc.render_doc(bexplore))); assert 'torch' not in sys.modules"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert "class TrainingStep" in done.stdout
    for member in ("modules", "make_batch(micro_batch_size)", "forward_backward(batch)", "update()", "evaluate(batch)"):
        assert member in done.stdout


CONFIGS = ROOT / "configs"


def test_reading_a_file_does_not_import_torch():
    program = f"from bexplore.config.load import load_config; load_config({str(CONFIGS / 'quickstart.yaml')!r})"
    check = "import sys; assert 'torch' not in sys.modules and 'optuna' not in sys.modules"
    subprocess.run([sys.executable, "-c", f"{program}; {check}"], check=True)


def test_the_guard_judges_without_importing_torch():
    code = "import sys, bexplore.guard.guard, bexplore.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_cost_model_is_evaluated_without_torch():
    program = "import sys, bexplore.trace.cost_model, bexplore.trace; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
