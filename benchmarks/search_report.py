"""The search benchmark as a table and as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from benchmarks.search_problems import IN_TURNS
from benchmarks.search_statistics import MIN_BAND
from benchmarks.search_total_cost import AS_IT_WORKS, EACH_COMPILED, TRAINING_S

PICTURED = ("public", "smooth", "rough", "cliffs")


def markdown(report: dict[str, Any]) -> str:
    """Everything measured, as one page."""
    facts = report["facts"]
    lines = ["# The search", "", f"`{facts['command']}`, {facts['date']}, revision {facts['revision']}.", ""]
    lines += [f"{key.replace('_', ' ')}: {value}  " for key, value in facts.items() if key not in ("command", "date")]
    lines += [
        "",
        "Shares have Wilson, means and ratios bootstrap intervals, 95 %, over problems. Out of memory: probes a run. "
        "Cost / exhaustive: of all problems together and, since a few slow jobs make up sums, of the median problem.",
        "",
    ]
    lines += _total_cost_lines(report.get("total_cost", ()))
    for world, methods in report["methods"].items():
        lines += [f"## {world}", "", *_methods_table(methods), ""]
        if world == "public":
            lines += _public_lines(report)
    lines += _noise_lines(report.get("noises", ()))
    lines += _never_below_lines(report.get("never_below", ()))
    lines += _tolerance_lines(report["tolerances"])
    lines += _shortfall_lines(report["regrets"])
    timing = report["decision_time"]
    lines += [
        "## Decision time",
        "",
        f"4096 candidates, belief included, {timing['count']} decisions: processor time median "
        f"{timing['processor_median_ms']:.1f} ms, 95th percentile {timing['processor_p95_ms']:.1f} ms; wall time "
        f"{timing['wall_median_ms']:.1f} and {timing['wall_p95_ms']:.1f} ms at a load of {timing['load']}.",
        "",
    ]
    return "\n".join(lines)


def _methods_table(methods: dict[str, dict[str, Any]]) -> list[str]:
    lines = [
        "| method | problems | within 2 % | within 5 % | mean regret | p95 regret | probes | cost / exhaustive "
        "| its median | out of memory |",
        f"|{'---|' * 10}",
    ]
    for name, row in methods.items():
        lines.append(
            f"| {name} | {row['problems']} | {_percent(row['within_2_percent'])} | {_percent(row['within_5_percent'])} "
            f"| {_percent_if_told(row, 'mean_regret')} | {100 * row['regret_p95']:.1f} % "
            f"| {_number(row['mean_probes'])} "
            f"| {_number(row['cost_over_exhaustive'])} | {_median_cost(row)} | {row['out_of_memory_per_run']:.2f} |"
        )
    lines += ["", *_calibration_lines(methods["bexplore"])]
    if IN_TURNS in methods:
        lines += ["", "With one compilation and sizes in turns:", "", *_calibration_lines(methods[IN_TURNS])]
    return lines


def _calibration_lines(row: dict[str, Any]) -> list[str]:
    bands = ", ".join(
        f"{band['from']:.0f}+: {band['score']:.0f} -> {band['true']:.0f} ({band['count']})" for band in row["bands"]
    )
    return [
        f"Score of 90 and above in {100 * row['share_with_score_90']:.0f} % of the runs: mean score "
        f"{row['score_90_mean']:.1f}, truly within 2 % {_percent(row['score_90_true'])}.  ",
        f"Expected calibration error over all messages {_number(row['expected_calibration_error'], 3)}; worst band "
        f"below 50 off by {_points(row['worst_low_band_points'])}, of 50 to 89 by "
        f"{_points(row.get('worst_middle_band_points', math.nan))}.  ",
        f"Mean score -> true share by band (messages): {bands}.  ",
        f"Ended by: {', '.join(f'{word} {count}' for word, count in row['stop_reasons'].items())}.",
        *_relative_lines(row),
    ]


def _relative_lines(row: dict[str, Any]) -> list[str]:
    """Nothing of results that are older than this figure."""
    if "relative_performance" not in row:
        return []
    told = row["relative_performance"]
    return [
        "",
        f"Relative performance within 10 % of the truth in {_percent(told['within_10_percent'])} of the runs; the "
        f"truth within its 95 % interval in {_percent(told['interval_holds'])}.",
    ]


def _public_lines(report: dict[str, Any]) -> list[str]:
    lines = ["### public, by family", ""]
    lines += [
        "| curves | problems | within 2 % | mean regret | probes | cost / exhaustive | its median | score >= 90 true "
        "| calibration error |",
        f"|{'---|' * 9}",
    ]
    for name, row in report["public_families"].items():
        lines.append(
            f"| {name} | {row['problems']} | {_percent(row['within_2_percent'])} "
            f"| {_percent_if_told(row, 'mean_regret')} | {_number(row['mean_probes'])} "
            f"| {_number(row['cost_over_exhaustive'])} | {_median_cost(row)} | {_percent(row['score_90_true'])} "
            f"| {_number(row['expected_calibration_error'], 3)} |"
        )
    shared = report["public_shared_compile"]
    return [
        *lines,
        "",
        "### public, one shared compilation",
        "",
        f"Within 2 % {_percent(shared['within_2_percent'])}, mean regret {_percent_if_told(shared, 'mean_regret')}, "
        f"probes {_number(shared['mean_probes'])}. Cost against a "
        "sweep of all sizes that compiles each, as users do today: "
        f"{_number(shared['static_sweep_ratio'])}. Against a sweep that shares one compilation as well: "
        f"{_number(shared['cost_over_exhaustive'])}, of the median curve {_median_cost(shared)}; "
        f"there one start and one compilation, which all methods pay, are "
        f"{shared['least_cost_ratio']:.2f} of the cost, and without them the ratio is "
        f"{shared['variable_cost_ratio']:.2f}.",
        "",
    ]


def _tolerance_lines(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "## Other tolerances",
        "",
        "bexplore alone, asked for the fastest within another share than 2 % (`explore.tolerance`); machines whose "
        "speed wanders with one compilation and sizes in turns. A score is then the "
        "probability of being within that share.",
        "",
        "| within | worlds | problems | score >= 90 | their mean | truly within | probes | calibration error |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['tolerance']:.0%} | {row['world']} | {row['problems']} | {100 * row['share_with_score_90']:.0f} % "
            f"| {row['score_90_mean']:.1f} | {_percent(row['score_90_true'])} | {_number(row['mean_probes'])} "
            f"| {_number(row['expected_calibration_error'], 3)} |"
        )
    return [*lines, ""]


def _shortfall_lines(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "## How far a low score is from the best",
        "",
        "A score below 90 is told with the share of the fastest size's speed within which it would be 90 "
        "(`regret_bound_90`). How often the recommended size is as near as that, over streamed recommendations with "
        "scores of 50 to 89, and of those with which an exploration ended.",
        "",
        "| worlds | recommendations | truly as near | median share | explorations ended so | truly as near |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        lines.append(
            f"| {row['world']} | {row['messages']} | {_percent(row['held'])} | {100 * row['median']:.1f} % "
            f"| {row['ended']} | {100 * row['ended_held']:.0f} % |"
        )
    return [*lines, ""]


def _total_cost_lines(sets: Sequence[dict[str, Any]]) -> list[str]:
    if not sets:
        return []
    lines = [
        "## What tuning costs in all",
        "",
        f"Seconds of the finder plus the seconds that its answer loses over a training of {TRAINING_S / 3600:.0f} "
        "hours (regret times its length; an answer that does not fit loses all of it). Every method on the same "
        f"problems: `{AS_IT_WORKS}` compiles once for all sizes and then the winner as the training will; "
        f"`{EACH_COMPILED}` pays a start and a compilation for each probe, as the others do. Ratios are to the "
        "cheapest other method of the set, whichever that is; their 95 % intervals are over curves and worlds, not "
        "over seeds of one.",
        "",
        "| set | problems | cheapest other, by sum | ours / it, by sum | each size compiled "
        "| cheapest other, by median | ours / it, by median | each size compiled |",
        f"|{'---|' * 8}",
    ]
    for row in sets:
        ours, apart = (row["ratios"][name] for name in (AS_IT_WORKS, EACH_COMPILED))
        lines.append(
            f"| {row['set']} | {row['problems']} ({row['sources']} curves or worlds) | {row['best_rival']} "
            f"| {_number(ours['sum'])} | {_number(apart['sum'])} | {row['best_rival_by_median']} "
            f"| {_number(ours['median'])} | {_number(apart['median'])} |"
        )
    lines += ["", "Seconds of a problem:", ""]
    lines += [
        "| set | method | finder, mean | lost, mean | both, mean | finder, median | both, median |",
        f"|{'---|' * 7}",
    ]
    for row in sets:
        for number, (name, found) in enumerate(row["methods"].items()):
            means = (found[key] / row["problems"] for key in ("finder_sum_s", "lost_sum_s", "sum_s"))
            cells = [f"{value:.0f}" for value in (*means, found["finder_median_s"], found["median_s"])]
            lines.append(f"| {row['set'] if number == 0 else ''} | {name} | {' | '.join(cells)} |")
    return [*lines, ""]


def _noise_lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    if not rows:
        return []
    lines = [
        "## Other noises",
        "",
        "bexplore alone on the recorded sweeps, whose passes and runs get this standard deviation; where a size was "
        "recorded several times, a run is one of these instead. Worst band: the most by which the mean score is off "
        f"the true share in a band of ten between 50 and 89 with {MIN_BAND} messages or more.",
        "",
        "| noise | sweeps | problems | within 2 % | mean regret | probes | score >= 90 | truly within "
        "| calibration error | worst band |",
        f"|{'---|' * 10}",
    ]
    for row in rows:
        lines.append(
            f"| {row['noise']:.0%} | {row['sweeps']} | {row['problems']} | {_percent(row['within_2_percent'])} "
            f"| {_percent_if_told(row, 'mean_regret')} | {_number(row['mean_probes'])} "
            f"| {100 * row['share_with_score_90']:.0f} % | {_percent(row['score_90_true'])} "
            f"| {_number(row['expected_calibration_error'], 3)} | {_points(row['worst_middle_band_points'])} |"
        )
    return [*lines, ""]


def _never_below_lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    if not rows:
        return []
    lines = [
        "## Recommended against its own measurements",
        "",
        "How often a size is recommended whose own measurements are more than 2 % below those of another size, at the "
        "end and over all streamed recommendations; each size compiled. Own measurements: the mean, over a size's "
        "probes, of ln(samples/s) of the median pass, disturbed probes and drift included. Surely: by more than 2 % "
        "and twice the standard error of the difference (from the spread of a size's probes or, where that is larger, "
        "of its passes).",
        "",
        "| worlds | explorations | ended below | share | surely | recommendations | below | surely | the most |",
        f"|{'---|' * 9}",
    ]
    for row in rows:
        lines.append(
            f"| {row['world']} | {row['explorations']} | {row['ended_below']} | {_percent(row['ended_below_share'])} "
            f"| {row['ended_surely_below']} | {row['recommendations']} | {row['recommendations_below']} "
            f"| {row['recommendations_surely_below']} | {100 * row['most_below']:.1f} % |"
        )
    return [*lines, ""]


def _percent_if_told(row: dict[str, Any], name: str) -> str:
    """A share with its interval; rows of an earlier run may lack it."""
    if name not in row:
        return "not told"
    value, low, high = (100 * number for number in row[name])
    return f"{value:.2f} % ({low:.2f} to {high:.2f})"


def _median_cost(row: dict[str, Any]) -> str:
    """Cost over exhaustive cost of the median problem; rows of an earlier run may lack it."""
    name = "median_cost_over_exhaustive"
    return _number(row[name]) if name in row else "not told"


def _percent(estimate: list[float]) -> str:
    value, low, high = (100 * number for number in estimate)
    return f"{value:.1f} % ({low:.1f} to {high:.1f})"


def _number(estimate: list[float], digits: int = 2) -> str:
    value, low, high = estimate
    return f"{value:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def _points(value: float) -> str:
    return "nothing that can be said" if math.isnan(value) else f"{value:.0f} points"


def draw_reliability(report: dict[str, Any], path: Path) -> None:
    """Mean score against true share by band, one panel a world; an honest score lies on the diagonal."""
    figure, axes = plt.subplots(1, len(PICTURED), figsize=(3.4 * len(PICTURED), 3.6), sharey=True)
    for axis, world in zip(axes, PICTURED, strict=True):
        bands = report["methods"][world]["bexplore"]["bands"]
        score = [band["score"] for band in bands]
        true = [band["true"] for band in bands]
        errors = [
            [max(band["true"] - band["low"], 0.0) for band in bands],
            [max(band["high"] - band["true"], 0.0) for band in bands],
        ]
        axis.plot([0, 100], [0, 100], color="0.7", linewidth=1, zorder=0)
        axis.errorbar(score, true, yerr=errors, fmt="o", markersize=5, capsize=2, color="#1b6ca8")
        axis.set_title(world)
        axis.set_xlabel("score")
        axis.set_xlim(-2, 102)
        axis.set_ylim(-2, 102)
    axes[0].set_ylabel("truly within 2 % of the best, %")
    figure.tight_layout()
    with plt.rc_context({"svg.hashsalt": "search"}):  # the same report gives the same file
        figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
