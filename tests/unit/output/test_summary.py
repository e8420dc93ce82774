"""The summary of a run."""

from __future__ import annotations

import dataclasses
import textwrap

import pytest

from bexplore.measurement.probe import Compilation, Outcome
from bexplore.output.summary import summary_text
from bexplore.run.parts.search import group_failures
from bexplore.run.result import RunResult
from bexplore.search.evidence import Evidence
from bexplore.search.policy.decide import decide
from bexplore.search.settings import SearchSettings
from bexplore.search.space import Space
from tests.builders import observed
from tests.unit.run.builders import run_result


def test_what_failed_is_in_the_last_words_with_its_reason():
    failures = group_failures(
        [
            observed(1),
            observed(4, outcome=Outcome.CRASHED, pass_times_s=(), reason="ValueError: odd sizes only (model.py:7)"),
            observed(2, outcome=Outcome.CRASHED, pass_times_s=(), reason="ValueError: odd sizes only (model.py:7)"),
            observed(64, outcome=Outcome.OUT_OF_MEMORY, pass_times_s=(), reason="too big"),
        ]
    )
    result = run_result(stop_reason="interrupted", run_dir="runs", failures=failures)

    text = summary_text(result, tolerance=0.02)

    assert "2, 4: crashed: ValueError: odd sizes only (model.py:7)" in text
    assert "too big" not in text


def test_failures_that_differ_in_numbers_alone_show_one_traceback():
    text = textwrap.dedent("""\
        Traceback (most recent call last):
          File "/site-packages/bexplore/engine/worker/__main__.py", line 3, in answer
            return probe()
          File "/home/user/train/model.py", line 7, in forward
            raise ValueError(f"{n} samples")
          File "/site-packages/torch/nn/modules/module.py", line 9, in _call_impl
            return forward()
        ValueError: 16 samples
        """)
    crashes = [
        observed(
            size,
            outcome=Outcome.CRASHED,
            pass_times_s=(),
            reason=f"ValueError: {size} samples (model.py:7)",
            traceback_text=text,
        )
        for size in (16, 13)
    ]
    failures = group_failures([observed(1), *crashes])
    result = run_result(stop_reason="interrupted", run_dir="runs", failures=failures)

    shown = summary_text(result, tolerance=0.02)

    assert "13, 16: crashed: ValueError: 16 samples (model.py:7)" in shown
    assert shown.count("Traceback") == 1
    assert shown.count("train/model.py") == 1
    assert "site-packages" not in shown


def result(**fields) -> dict:
    record = {
        "event": "result",
        "micro_batch_size": 8,
        "relative_performance": 1.5,
        "confidence": 91,
        "samples_per_s": 123.4,
        "num_probes": 5,
        "elapsed_s": 61.0,
        "global_batch_sizes": [
            {"global_batch_size": 64, "accumulation_steps": 8, "num_tokens": 8192, "step_time_s": 0.5},
            {"global_batch_size": 72, "accumulation_steps": 9, "num_tokens": 9216, "step_time_s": 0.6},
        ],
        "base_micro_batch_size": 1,
        "stop_reason": "target_confidence",
        "smallest_within_tolerance": 6,
        "memory_saved_bytes": 2**20,
        "exact_over_shared": 1.01,
        "peak_memory_bytes": 3 * 2**30,
        "memory_headroom_bytes": 2**30,
        "outcomes": {"measured": 4, "out_of_memory": 1},
        "batch_size": 64,
        "batch_message": "",
        "gradient_equivalence": {"message": "the gradients agree"},
        "warnings": [],
        "run_dir": "somewhere",
    }
    return record | fields


def words(record: dict, target: float | None = None) -> str:
    return summary_text(
        RunResult.from_record(record),
        paste="train_input.micro_batch_size: 8",
        tolerance=0.02,
        target_confidence=target,
    )


def test_a_speed_of_hundreds_of_times_is_told_without_decimals():
    far = result(relative_performance=783.35, relative_performance_interval=[484.69, 1256.15])

    assert words(far).startswith("Use micro_batch_size 8: 783x (485 to 1256) the speed of size 1")


def test_what_stays_to_be_filled_in_of_a_command_is_referred_to_the_table():
    shown = summary_text(
        RunResult.from_record(result()),
        tolerance=0.02,
        command_line=("python train.py {config} --steps {accumulation} --out {output_dir}", "job.json with bs: 16"),
    )

    assert shown.splitlines()[-4:] == [
        "Run:     python train.py {config} --steps {accumulation} --out {output_dir}",
        "         {accumulation}: as in the table above",
        "         {output_dir}: the folder in which your training writes",
        "         {config}: job.json with bs: 16",
    ]


def test_a_smaller_size_that_saves_no_memory_is_not_advised():
    assert "size 6 is within 2% of it and saves 1.00 MiB" in words(result())
    assert "within 2% of it" not in words(result(memory_saved_bytes=-(2**20)))


def test_an_answer_that_is_not_the_fastest_that_ran_is_not_called_so():
    assert "within 0.5% of the fastest of 5 probes" in words(result(behind_fastest=0.0046))
    assert "fastest of 5 probes" in words(result(behind_fastest=0.0004))
    assert "within" not in words(result(behind_fastest=0.0004)).partition("fastest of 5")[0].rpartition("why")[2]


def test_an_answer_at_the_largest_size_allowed_says_so():
    assert "; the answer is explore.max, above which nothing is tried" in words(result(bound="max"))
    assert "explore.max" not in words(result())


def test_starts_that_check_a_command_after_the_search_are_told_apart():
    assert "5 probes (4 measured, 1 out of memory; 1 of them after the search, to check the answer)" in words(
        result(num_probes_after=1)
    )


@pytest.mark.parametrize(
    ("tokens", "told"),
    [
        (20.5, "2,530 tokens/s without padding; samples have 20.5 in the mean, to which"),
        (0.75, "93 tokens/s without padding; the size counts tokens, of which 25% are padding, to which"),
    ],
)
def test_tokens_are_told_by_what_the_size_counts(tokens, told):
    assert told in " ".join(words(result(tokens_per_sample=tokens)).split())
    of_two = " ".join(words(result(tokens_per_sample=tokens, total_samples_per_s=10_000.0)).split())
    assert "tokens/s of each replica without padding" in of_two


def test_the_answers_own_process_is_told_by_what_the_training_runs():
    compiled = words(result(exact_over_shared=0.94, compilation="exact"))
    eager = words(result(exact_over_shared=0.88, compilation="eager"))

    assert (
        "  compiled         run exactly as your training will compile it: 0.94x of the search's shared compilation"
        in compiled
    )
    assert (
        "  own process      run in a process of its own, as your training will: 0.88x of its speed beside other sizes"
        in eager
    )
    start = words(result(exact_over_shared=0.98, compilation="exact", num_replicas=2))
    assert (
        "  own start        run in a start of its own, as your training will: 0.98x of its speed in the search" in start
    )
    assert "compiled  " not in start
    assert "process   " not in compiled
    assert "compiled  " not in eager


def test_the_last_words_say_what_why_where_and_what_to_paste():
    text = words(result())

    assert text.startswith(
        "Use micro_batch_size 8: 1.50x the speed of size 1, 123.4 samples/s; confidence 91 out of 100."
    )
    assert "4 measured, 1 out of memory" in text
    assert "peak 3.00 GiB of tensors, 1.00 GiB (25%) of the budget stay free" in text
    assert "size 6 is within 2% of it and saves 1.00 MiB" in text
    assert "the gradients agree" in text
    assert "8,192" in next(line for line in text.splitlines() if line.endswith("<- yours"))
    assert text.endswith("Results: somewhere\nPaste:   train_input.micro_batch_size: 8")


def test_a_score_below_90_says_within_what_share_it_would_be_90():
    low = words(result(confidence=78, regret_bound_90=0.0341))

    assert (
        "score            78 out of 100 that it is within 2% of the fastest that fits, "
        "90 out of 100 that it is within 3.5%" in low
    )
    assert "within 2%" not in words(result(confidence=91, regret_bound_90=0.015, smallest_within_tolerance=8))
    assert "90 out of 100" not in words(result(confidence=8, regret_bound_90=None))
    assert "90 out of 100" not in words(result())  # a run of an earlier version


def test_the_remaining_gain_and_another_probes_cost_are_told():
    economy = {"left_to_gain": 0.006, "training_time_s": 36_000.0, "next_probe_s": 40.0, "next_probe_saves": 4e-4}
    dear = words(result(confidence=86, stop_reason="costs_more_than_it_saves", **economy))

    assert "ended because another probe is not expected to save enough for its cost" in dear
    assert (
        "  remaining gain   0.6% in expectation, 3 min 36 s of 10 h, at a score of 86; "
        "another probe costs 40.0 s and is expected to save 14.4 s\n" in dear
    )
    late = words(result(**economy | {"next_probe_saves": 4e-3, "next_probe_must_save": 4.0}))
    assert (
        "costs 40.0 s and is expected to save 2 min 24 s; at such a score it is run only to save 4 times its cost\n"
        in late
    )
    steps = words(result(**economy | {"training_samples": 1000, "next_probe_saves": 1e-6}))
    assert "of 10 h by the file's steps, at a score of 91; another probe costs 40.0 s" in steps
    assert "expected to save next to nothing\n" in steps


def test_a_gain_of_nothing_or_without_probes_is_told_briefly():
    probe = {"training_time_s": 36_000.0, "next_probe_s": 40.0, "next_probe_saves": 0.0}

    assert "  remaining gain   negligible at a score of 91: less than 0.05% in expectation\n" in words(
        result(left_to_gain=0.0004, **probe)
    )
    no_probe = result(left_to_gain=0.012) | dict.fromkeys(probe)
    assert "  remaining gain   1.2% in expectation, at a score of 91\n" in words(no_probe)
    assert "  remaining gain" not in words(result())  # a run of an earlier version


def test_the_last_words_tell_the_confidence_that_was_asked_for():
    quick = words(result(confidence=88), 75.0)

    assert "ended because the requested confidence, 75 out of 100, is reached" in quick
    assert "ended because the requested confidence is reached" in words(result())
    assert "ended because somebody said so" in words(result(stop_reason="somebody said so"))


def test_the_last_words_name_limits_report_and_apply_command():
    found = [{"kind": "update", "finding": f"finding {number}", "action": f"action {number}"} for number in range(3)]

    record = RunResult.from_record(result(bottlenecks=found))
    text = summary_text(record, tolerance=0.02, config="job.yaml", report="somewhere/report.html")

    assert "limits           finding 0; try: action 0" in text
    assert "finding 2" not in text
    assert "Report:  somewhere/report.html\nApply:   bexplore apply job.yaml\nPaste:   micro_batch_size: 8" in text


def test_the_last_words_tell_what_the_process_holds_beside_its_tensors():
    gib = 2**30
    more = result(peak_memory_bytes=gib, resident_memory_bytes=round(1.5 * gib), memory_headroom_bytes=gib // 2)

    assert "peak 1.00 GiB of tensors, 1.50 GiB held (PyTorch itself not counted), 512 MiB (25%) of the budget" in words(
        more
    )
    assert "held by" not in words(result())


def test_a_size_that_keeps_the_global_batch_size_is_named():
    kept = {"micro_batch_size": 6, "accumulation_steps": 11, "samples_per_s": 398.0, "confidence": 92}
    kept |= {"free_micro_batch_size": 8, "over_recommended": 0.968, "relative_performance": 1.5}
    own = {"batch_size": 66, "replica_batch_size": 66, "divisibility": "strict"}
    told = "To keep batch_size 66, use micro_batch_size 6 in 11 accumulation steps: 0.97x the speed of size 8, 398 "
    lines = words(result(keeps_batch_size=kept, **own)).splitlines()

    assert lines[1] == f"{told}samples/s; confidence 92 out of 100."
    assert "explore.candidates: divisors" in words(result(keeps_batch_size=kept | {"confidence": 60}, **own), target=90)
    itself = kept | {"micro_batch_size": 8, "over_recommended": 1.0}
    assert "It keeps batch_size 66, in 11 accumulation steps." in words(result(keeps_batch_size=itself, **own))
    made = words(result(keeps_batch_size=itself, is_made_of_size=True, **own))
    assert "A step of the command has 66 samples, in 11 accumulation steps." in made
    none = words(result(keeps_batch_size=None, **own))
    assert "No micro_batch_size that ran keeps batch_size 66; explore.candidates: divisors tries only" in none
    fixed = words(result(keeps_batch_size=None, **own | {"passes_per_step": 2}))
    assert "keeps batch_size 66: the command has 2 passes a step, so that 33 would keep it." in fixed
    uneven = words(result(keeps_batch_size=None, **own | {"replica_batch_size": None}))
    assert "No micro_batch_size keeps batch_size 66: the replicas have no equal shares of it." in uneven
    assert "keep" not in words(result(batch_size=None))


def test_the_last_words_leave_out_what_is_not_known():
    text = words(
        result(
            smallest_within_tolerance=8,
            exact_over_shared=None,
            gradient_equivalence=None,
            peak_memory_bytes=None,
            memory_headroom_bytes=None,
        )
    )

    assert "None" not in text
    assert "unknown on this device" in text


@pytest.mark.parametrize(
    ("resident_bytes", "headroom_bytes", "told"),
    [
        (2**21, 0, "peak 26.7 KiB of tensors, 2.00 MiB held (PyTorch itself not counted), no memory budget left"),
        (
            2**18,
            3 * 2**18,
            "peak 26.7 KiB of tensors, 256 KiB held (PyTorch itself not counted), 768 KiB (75%) of the budget",
        ),
        (
            2**15,
            2**20,
            "peak 26.7 KiB of tensors, 32.0 KiB held (PyTorch itself not counted), 1.00 MiB (97%) of the budget",
        ),
        (2**18, 2**30, "peak 26.7 KiB of tensors, 1.00 GiB (>99%) of the budget stay free"),
        (
            2**30,
            2**18,
            "peak 26.7 KiB of tensors, 1.00 GiB held (PyTorch itself not counted), 256 KiB (<1%) of the budget stay "
            "free",
        ),
    ],
)
def test_what_is_left_of_a_budget_is_told_as_people_would(resident_bytes, headroom_bytes, told):
    memory = {
        "peak_memory_bytes": 27_341,
        "resident_memory_bytes": resident_bytes,
        "memory_headroom_bytes": headroom_bytes,
    }

    assert f"memory           {told}" in words(result(**memory))


EAGER = {
    "verdict": "faster",
    "over_compiled": 1.08,
    "low": 1.05,
    "high": 1.11,
    "num_pairs": 5,
    "compiled_timed_s": 0.6,
    "eager_timed_s": 0.55,
    "samples_per_s": 10.0,
    "peak_memory_bytes": 2**20,
    "problem": "",
}


def test_the_last_words_speak_of_eager_where_it_was_compared():
    slower = EAGER | {"over_compiled": 0.8, "verdict": "slower"}

    assert "runs at 1.08x the speed (95% interval 1.05 to 1.11; 5 rounds, 550 ms, of each" in words(result(eager=EAGER))
    assert "keep torch.compile" in words(result(eager=slower))
    assert "torch.compile" not in words(result(eager=None))


def test_an_interval_that_is_too_wide_is_no_verdict_on_eager():
    wide = EAGER | {"verdict": "unsure", "low": 0.62, "high": 1.78}
    same = EAGER | {"verdict": "same", "over_compiled": 1.0, "low": 0.99, "high": 1.01}

    assert "0.62 to 1.78" in words(result(eager=wide))
    assert "too uncertain to decide whether compiling pays" in words(result(eager=wide))
    assert "keep torch.compile" not in words(result(eager=wide))
    assert "within 2% that is as fast" in words(result(eager=same))


def test_the_line_of_a_warm_start_says_that_the_cache_is_code():
    text = words(result(artifacts_dir="/runs/my run/compiled/micro_batch_size_8"))

    assert "export TORCHINDUCTOR_CACHE_DIR='/runs/my run/compiled/micro_batch_size_8'" in text
    assert "executable code" in text


def test_without_a_recommendation_the_last_words_say_so():
    assert words(result(micro_batch_size=None, stop_reason="interrupted")).startswith(
        "No recommendation: it was interrupted"
    )


SHARED = SearchSettings(search_compilation=Compilation.SHARED, verify_exact=False)


def asked(*evidence: Evidence, **settings) -> tuple[int, ...]:
    """What the next probe is interleaved with."""
    return decide(Space.from_sizes(range(1, 65)), evidence, dataclasses.replace(SHARED, **settings)).interleaved_with


ONE_RANK = {"description": "FSDP over 8 ranks", "num_ranks": 8, "num_replicas": 8, "effective_pass_s": 1.125}
ALL_RANKS = ONE_RANK | {
    "launcher": "srun",
    "hosts": ["node1", "node2"],
    "holds_communication": True,
    "accumulation_steps": 4,
    "inner_pass_s": 1.0,
    "last_pass_s": 1.5,
    "slowest_rank": 3,
    "slowest_rank_lag": 0.1,
    "worst_peak_rank": 0,
    "worst_peak_memory_bytes": 3 * 2**30,
    "one_rank_pass_s": 0.9,
    "exposed_communication_s": 0.225,
    "parallel_efficiency": 0.8,
}


def ranks_row(**parallel) -> str:
    lines = words(result(parallel=parallel)).splitlines()
    return next(line.removeprefix("  ranks").strip() for line in lines if line.startswith("  ranks"))


def test_it_is_told_where_ranks_ran_and_what_communication_costs():
    assert ranks_row(**ALL_RANKS) == (
        "8 ran on node1, node2, started by srun (FSDP over 8 ranks); rank 3 computes slowest: at 90% of the "
        "median rank's speed; rank 0 needs most memory, 3.00 GiB; "
        "a pass takes 1.00 s, and the last of a step of 4 passes, which reduces "
        "gradients, 1.50 s; communication adds 225 ms to a pass: parallel efficiency 80%"
    )


def test_one_rank_alone_claims_nothing_of_communication():
    assert ranks_row(**ONE_RANK) == "one of 8 ranks ran, alone (FSDP over 8 ranks)"
    assert ranks_row(**ONE_RANK, last_pass_s=1.5).endswith("; the one pass of a step reduces gradients, 1.50 s")
    assert "a step, which reduces" in ranks_row(**ONE_RANK, inner_pass_s=1.0, last_pass_s=1.5)


def test_efficiency_is_at_most_one_and_hosts_are_not_listed():
    noisy = ranks_row(**ALL_RANKS | {"exposed_communication_s": -0.01, "parallel_efficiency": 1.01})
    assert noisy.endswith("which reduces gradients, 1.50 s; communication adds 500 ms to it")
    alike = ALL_RANKS | {"exposed_communication_s": -0.01, "parallel_efficiency": 1.01}
    alike |= {"inner_pass_s": None, "last_pass_s": None}
    assert ranks_row(**alike).endswith("; computation hides all communication")
    many = ranks_row(**ALL_RANKS | {"hosts": [f"node{number}" for number in range(64)]})
    assert "8 ran on node0, node1, node2, node3 and 60 more, started by srun" in many


def test_a_job_of_one_device_has_no_row_of_ranks():
    assert "  ranks" not in words(result())


@pytest.mark.parametrize("width", [60, 80, 120])
def test_long_lines_are_cut_between_words_at_the_width_of_the_terminal(width):
    long = "the loader takes 40% of a step: more worker processes, or pinned memory, would hide it from the device"
    answer = {"micro_batch_size": 8, "base_micro_batch_size": 1, "relative_performance": 2.0, "samples_per_s": 40.0}
    result = run_result(**answer, confidence=91, run_dir="runs/" + "x" * 100, warnings=(long,))
    options = {"tolerance": 0.02, "config": "job.yaml " + "y" * 100}

    cut = summary_text(result, width=width, **options)
    whole = summary_text(result, **options)

    assert cut.split() == whole.split()  # no word is broken or lost
    to_copy = ("Results:", "Report:", "Apply:", "Paste:", "Run:")
    assert max(len(line) for line in cut.splitlines() if not line.startswith(to_copy)) <= width
    assert f"Apply:   bexplore apply {options['config']}" in cut.splitlines()
