"""How long `bexplore plan RUN` takes: `python -m benchmarks.plan_time [--times N]`.

A small job is explored; its run is planned again and again, each time beside a Python process that does nothing. The
machine must be quiet.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.machine_facts import machine_facts

ROOT = Path(__file__).parents[1]
TABLE = Path(__file__).parent / "results" / "plan_time.md"
JOB = ROOT / "configs" / "quickstart.yaml"
WITHIN_S = 0.5
NOTHING = [sys.executable, "-c", "pass"]
_LIMIT_S = 600


def main() -> None:
    """Explore, plan and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--times", type=int, default=15)
    options = parser.parse_args()
    bexplore = [sys.executable, "-m", "bexplore"]
    with tempfile.TemporaryDirectory() as folder:
        explore = [*bexplore, "explore", str(JOB), "-q"]
        subprocess.run(explore, cwd=folder, check=True, timeout=_LIMIT_S, capture_output=True)
        run = max(path.parent for path in Path(folder).rglob("result.json"))
        plan = [*bexplore, "plan", str(run), "--samples", "1000000", "--devices", "1,8,64", "--json"]
        seconds(plan), seconds(NOTHING)
        times = [(seconds(plan), seconds(NOTHING)) for _ in range(options.times)]
    text = table([plan_s for plan_s, _ in times], [nothing_s for _, nothing_s in times])
    TABLE.write_text(text)
    print(text)


def seconds(command: Sequence[str]) -> float:
    """Return the wall seconds of a process."""
    began_s = time.perf_counter()
    subprocess.run(command, cwd=ROOT, check=True, timeout=_LIMIT_S, capture_output=True)
    return time.perf_counter() - began_s


def table(plans_s: Sequence[float], nothings_s: Sequence[float]) -> str:
    """Return the table in Markdown."""
    facts = machine_facts()
    rows = [("`bexplore plan RUN`", plans_s, f"<= {WITHIN_S}"), ("`python -c pass`", nothings_s, "")]
    return "\n".join(
        [
            "# How long a plan takes",
            "",
            f"Written by `python -m benchmarks.plan_time --times {len(plans_s)}`, {facts['at'][:10]}; "
            f"{facts['processor']}, {facts['processors']} cores, Python {facts['python']}.",
            "",
            "| process | median s | least to most s | must |",
            "| --- | ---: | ---: | ---: |",
            *(
                f"| {name} | {statistics.median(own):.2f} | {min(own):.2f} to {max(own):.2f} | {must} |"
                for name, own, must in rows
            ),
            "",
        ]
    )


if __name__ == "__main__":
    main()
