"""Tables of README.md and docs/ that come from `benchmarks/results`, as Markdown."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.engine_cost import OURS, SWEEP, beats_every_rival, finders, sums
from benchmarks.search_problems import IN_TURNS
from benchmarks.search_total_cost import AS_IT_WORKS, EACH_COMPILED
from bexplore.config.dialects.families import FAMILIES
from bexplore.config.dialects.family import Keys
from bexplore.config.document.values import Values
from bexplore.measurement.statistics import paired_ratio

RESULTS = Path(__file__).parent / "results"
FINDERS = {  # name for people, and how its answer was run
    OURS: ("bexplore", "yes, compiled"),
    SWEEP: ("a static sweep of powers of two", "yes, compiled"),
    "lightning_power": ("Lightning, power", "3 steps, eager"),
    "lightning_binsearch": ("Lightning, binsearch", "3 steps, eager"),
    "accelerate": ("accelerate", "3 steps, eager"),
    "doubling_compiled": ("doubling, torch.compile", "3 steps, compiled"),
}
WORLDS = {
    ("public", "bexplore"): "recorded sweeps of others, replayed",
    ("smooth", "bexplore"): "simulated jobs, smooth",
    ("rough", "bexplore"): "simulated jobs, rough",
    ("cliffs", "bexplore"): "simulated jobs with a fall, a hole or a peak",
    ("wandering", IN_TURNS): "simulated jobs on a drifting host, sizes interleaved",
}
SETS_OF_PROBLEMS = {
    "recorded, developed on": "recorded sweeps on which the search was developed",
    "recorded, not seen": "other recorded sweeps",
    "cpu_like": "simulated jobs like those of a CPU",
    "gpu_like": "simulated jobs like those of a GPU",
}
SHOWN_RIVALS = 3  # the cheapest of each set


def score() -> str:
    """How often a final score of 90 and above was right, by kind of problem."""
    methods = _search()["methods"]
    rows = ["| problems | ended so | mean score | truly within 2 % | probes |", "|---|---|---|---|---|"]
    return "\n".join(rows + [_score_row(words, methods[world][method]) for (world, method), words in WORLDS.items()])


def tolerance() -> str:
    """How often it was right where another tolerance than 2 % was set."""
    rows = ["| tolerance | ended so | mean score | truly within | probes |", "|---|---|---|---|---|"]
    found = [one for one in _search()["tolerances"] if one["world"] == "all"]
    return "\n".join(rows + [_score_row(f"{one['tolerance']:.0%}", one) for one in found])


def _score_row(title: str, found: Mapping[str, Any]) -> str:
    ended = round(found["share_with_score_90"] * found["problems"])
    return (
        f"| {title} | {ended:,} of {found['problems']:,} | {found['score_90_mean']:.0f} "
        f"| {_interval(found['score_90_true'])} | {found['mean_probes'][0]:.1f} |"
    )


def noise() -> str:
    """How well the score is calibrated on recorded sweeps, by the noise of a pass."""
    rows = [
        "| noise of a pass | sweeps | truly within 2 % at 90 and above | probes | calibration error | worst band |",
        "|---|---|---|---|---|---|",
    ]
    for one in _search()["noises"]:
        error, low, high = one["expected_calibration_error"]
        rows.append(
            f"| {one['noise']:.0%} | {one['sweeps']} | {_interval(one['score_90_true'])} | {one['mean_probes'][0]:.1f} "
            f"| {error:.3f} ({low:.3f} to {high:.3f}) | {one['worst_middle_band_points']:.0f} points |"
        )
    return "\n".join(rows)


def bands() -> str:
    """What streamed scores were worth, by band of ten: the mean score, the true share, and how many there were."""
    methods = _search()["methods"]
    starts = range(50, 100, 10)
    titles = " | ".join(f"{start} to {start + 9}" for start in starts)
    rows = [f"| problems | {titles} |", "|---|" + "---|" * len(starts)]
    for (world, method), words in WORLDS.items():
        found = {one["from"]: one for one in methods[world][method]["bands"]}
        rows.append(f"| {words} | {' | '.join(_band(found.get(start)) for start in starts)} |")
    return "\n".join(rows)


def _band(found: Mapping[str, Any] | None) -> str:
    return f"{found['score']:.0f} -> {found['true']:.0f} ({found['count']:,})" if found else "none"


def regret_bound() -> str:
    """How often the recommended size is as near to the best as its regret bound states."""
    words_of = {world: words for (world, _), words in WORLDS.items()}
    rows = ["| problems | recommendations | truly within the bound |", "|---|---|---|"]
    everything, *worlds = _search()["regrets"]
    for found in (*worlds, everything):
        words = words_of.get(found["world"], "all of these together")
        rows.append(f"| {words} | {found['messages']:,} | {_interval(found['held'])} |")
    return "\n".join(rows)


def cost() -> str:
    """What tuning costs in all on the engine's jobs and by sum, by finder."""
    jobs = _engine_jobs()
    costs = {name: {one["name"]: one for one in finders(job)} for name, job in jobs.items()}
    titles = [job["title"].partition(",")[0] for job in jobs.values()]
    rows = [f"| finder | {' | '.join(titles)} | sum |", "|---|" + "---:|" * (len(titles) + 1)]
    total_s = sums(jobs)
    for name in sorted(total_s, key=list(FINDERS).index):
        cells = [_cost(costs[job].get(name)) for job in jobs]
        rows.append(f"| {FINDERS[name][0]} | {' | '.join(cells)} | {_seconds(total_s[name])} |")
    return "\n".join(rows)


def cost_verdict() -> str:
    """A sentence: who costs least by sum, and in how many of the jobs bexplore does."""
    jobs, total_s = _engine_jobs(), sums(_engine_jobs())
    (name, least), *_ = sorted(
        ((name, seconds) for name, seconds in total_s.items() if name != OURS and seconds is not None),
        key=lambda one: one[1],
    )
    wins = sum(beats_every_rival(job) is True for job in jobs.values())
    return (
        f"Over all {len(jobs)} jobs bexplore costs {_seconds(total_s[OURS])} s, the cheapest other finder "
        f"({FINDERS[name][0]}) {_seconds(least)} s; in {wins} of the {len(jobs)} bexplore is the cheapest of all."
    )


def _cost(run: Mapping[str, Any] | None) -> str:
    if run is None:
        return "not measured"
    return f"ends ({_seconds(run['cost_s'])})" if run["ends"] else _seconds(run["cost_s"])


def _seconds(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds:,.0f}"


def total() -> str:
    """What tuning costs in all with each method of the search benchmark: means over the problems of a set."""
    rows = [
        "| problems | finder | seconds to find | seconds lost in 10 h | both | over the cheapest other |",
        "|---|---|---|---|---|---|",
    ]
    for found in _search().get("total_cost", ()):
        methods, count = found["methods"], found["problems"]
        rivals = sorted(
            (name for name in methods if name not in found["ratios"]), key=lambda name: methods[name]["sum_s"]
        )
        for number, name in enumerate((AS_IT_WORKS, EACH_COMPILED, *rivals[:SHOWN_RIVALS])):
            finder, lost, both = (methods[name][key] / count for key in ("finder_sum_s", "lost_sum_s", "sum_s"))
            ratio = ""
            if name in found["ratios"]:
                value, low, high = found["ratios"][name]["sum"]
                ratio = f"{value:.2f} ({low:.2f} to {high:.2f})"
            title = f"{SETS_OF_PROBLEMS[found['set']]} ({count:,})" if number == 0 else ""
            rows.append(f"| {title} | {name} | {finder:.0f} | {lost:.0f} | {both:.0f} | {ratio} |")
    return "\n".join(rows)


def one_way_to_measure() -> str:
    """The two designs of the experiment, side by side, on each family of simulated jobs."""
    rows = [
        "| simulated jobs | design | within 2 % | probes | score >= 90 right | mean seconds |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for found in json.loads((RESULTS / "one_way_to_measure.json").read_text())["rows"]:
        probes, low, high = found["mean_probes"]
        cells = (
            found["family"].replace("_", " ").replace("wandering", "drifting host"),
            found["design"],
            _interval(found["within_2_percent"]),
            f"{probes:.2f} ({low:.2f} to {high:.2f})",
            _interval(found["score_90_true"]),
            f"{found['mean_cost_s']:.0f}",
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def rivals() -> str:
    """What each finder answers on the engine's jobs, how long it takes, and what the answer is worth."""
    rows = [
        "| job | finder | seconds | answer | its speed, of the fastest size's | it was run |",
        "|---|---|---|---|---|---|",
    ]
    for job in _engine_jobs().values():
        found = sorted(finders(job), key=lambda one: list(FINDERS).index(one["name"]))
        for number, one in enumerate(found):
            name, how = FINDERS[one["name"]]
            title = job["title"] if number == 0 else ""
            speed = f"{100 * (1 - one['regret']['estimate']):.1f} %" if one["regret"] else "not measured"
            was_run = how if one["was_run"] else "no"
            rows.append(f"| {title} | {name} | {one['total_s']:.0f} | {one['answer']} | {speed} | {was_run} |")
    return "\n".join(rows)


def _search() -> dict[str, Any]:
    return json.loads((RESULTS / "search.json").read_text())


def _engine_jobs() -> dict[str, Any]:
    return json.loads((RESULTS / "engine.json").read_text())["jobs"]


def _interval(shares: tuple[float, float, float]) -> str:
    share, low, high = (100.0 * value for value in shares)
    return f"{share:.1f} % ({low:.1f} to {high:.1f})"


def families() -> str:
    """Return the table of the families of configurations."""
    lines = [
        "| family (`--dialect`) | micro-batch | global batch | accumulation | command, or how to type it | evidence |"
    ]
    lines.append("|---|---|---|---|---|---|")
    num_read = Counter(one.get("found") for one in json.loads((RESULTS / "dialects.json").read_text()))
    started = json.loads((RESULTS / "families.json").read_text())
    for family in FAMILIES.values():
        program = family.find_program(Values({}), 1)
        words = () if program is None else program.line
        total = _key(family.global_batch_size) or "derived"
        steps = _key(family.accumulation) or "derived"
        usual = f"`{' '.join(words)}`" if words else family.note.replace("|", "/")
        tokens = " (tokens)" if family.counts_tokens else ""
        size = f"{_key(family.micro_batch_size)}{tokens}"
        packages = [f"run with {one['package']}" for name, one in started.items() if family.title in name]
        evidence = "; ".join([*packages, f"{num_read[family.name]} files read"] if num_read[family.name] else packages)
        evidence = evidence or "the family's own documentation"
        lines.append(f"| {family.title} (`{family.name}`) | {size} | {total} | {steps} | {usual} | {evidence} |")
    return "\n".join(lines)


def _key(keys: Keys) -> str:
    return f"`{keys[0]}`" if keys else ""


def plan_steps() -> str:
    """Planned beside real optimizer steps."""
    path = RESULTS / "plan_steps.md"
    return "\n".join(_table_lines(path))


def published_trainings() -> str:
    """Statistics of plans of published trainings by what they show, and the plans with their sources."""
    text = (RESULTS / "published_trainings.md").read_text()
    statistics = text[text.index("| what it shows |") :].partition("\n\n")[0]
    lines = text[text.index("| training |") :].partition("\n\n")[0].splitlines()
    kept = [[cell.strip() for cell in line.strip("|").split("|")][:9] for line in lines]
    return "\n".join([statistics, "", *(f"| {' | '.join(cells)} |" for cells in kept)])


def lengths() -> str:
    """The size for typical batches beside that for the longest, by job."""
    records = json.loads((RESULTS / "lengths.json").read_text())
    rows = ["| samples, model | size for their lengths | size for the longest alone | tokens/s | seconds |"]
    rows.append("|---|---:|---:|---:|---:|")
    for name, record in records.items():
        if "truth" not in record:  # not timed yet
            continue
        own, other = record["explored"], record["fixed"]
        size, alone = own["micro_batch_size"], other["micro_batch_size"]
        gain = paired_ratio(record["truth"][str(alone)], record["truth"][str(size)])
        cost = own["elapsed_s"] / other["elapsed_s"]
        rows.append(
            f"| {name} | {size} | {alone} | {gain.value:.2f}x ({gain.low:.2f} to {gain.high:.2f}) | {cost:.2f}x |"
        )
    return "\n".join(rows)


def _table_lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if line.startswith("|")]


# Estimated kernel times


_STREAM_KINDS = {
    "Llama-2-7b": ("pointwise", "activation", "reduction"),
    "phi-2": ("pointwise", "gelu", "layer_norm"),
}


def kernel_times() -> str:
    """How far the model of kernel times is from kernels that it was not fitted on, by device."""
    report = json.loads((RESULTS / "kernel_times.json").read_text())
    lines = [
        "| device | kernels that were not fitted on | median error | 90 % within | bias | curve over tokens, rms | "
        "loss of the best |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for device, rows in report["products"].items():
        names = {
            "left out in turn": "matrix products, each model and width left out in turn",
            "left out: Llama-2-7b-hf x1": "matrix products of Llama-2-7b, unsplit",
            "phi-2 from Llama-2-7b": "matrix products of phi-2, from Llama-2-7b alone",
            "Llama-2-7b from phi-2": "matrix products of Llama-2-7b, from phi-2 alone",
        }
        lines += [_errors_row(device.upper(), shown, rows[name]) for name, shown in names.items()]
        lines += [
            _errors_row(device.upper(), f"{kind} kernels of {model}", report["streams"][device][f"{model}, {kind}"])
            for model, kinds in _STREAM_KINDS.items()
            for kind in kinds
        ]
    lines += [
        _errors_row(device.upper(), f"linear layers in float32, {name.removeprefix('others, ')}", row)
        for device, rows in report["singles"].items()
        for name, row in rows.items()
        if name.startswith("others, ")
    ]
    lines += [
        _errors_row(
            name.split()[0].upper(), f"matrix products, with the efficiencies of the {name.split()[2].upper()}", row
        )
        for name, row in report["transfer"].items()
    ]
    return "\n".join(lines)


def _errors_row(device: str, kernels: str, row: Mapping[str, float]) -> str:
    keys = ("median_error", "p90_error", "bias", "shape_rms", "loss_mean")
    shown = [f"{100 * row[key]:.1f} %" if key in row else "" for key in keys]
    return f"| {device} | {kernels} | {' | '.join(shown)} |"


def estimate_prior() -> str:
    """What estimates, right and wrong ones, do to the search."""
    lines = (RESULTS / "estimate_prior.md").read_text().splitlines()
    return "\n".join(line for line in lines if line.startswith("|"))


def published_collectives() -> str:
    """How far the model of collectives is from published times, by message."""
    lines = (RESULTS / "published_collectives.md").read_text().splitlines()
    return "\n".join(lines[4:]).strip()


def whole_steps() -> str:
    """How far sums of estimated kernels are from published passes."""
    lines = (RESULTS / "whole_steps.md").read_text().splitlines()
    (verdict,) = (line for line in lines if "median error" in line)
    return "\n".join([verdict, "", *(line for line in lines if line.startswith("|"))])


def calibrated_jobs() -> str:
    """How far estimates by a measured table are from passes on this machine's processor."""
    lines = (RESULTS / "calibrated_jobs.md").read_text().splitlines()
    (verdict,) = (line for line in lines if " jobs: shape " in line)
    return "\n".join([verdict, "", *(line for line in lines if line.startswith("|"))])


def estimated_sweeps() -> str:
    """What the size that is estimated best loses in published sweeps, and what its scores were worth."""
    lines = (RESULTS / "estimated_sweeps.md").read_text().splitlines()
    (verdict,) = (line.partition(". ")[2] for line in lines if "estimated best loses" in line)
    return "\n".join([verdict, "", *(line for line in lines if line.startswith("|"))])
