"""Which variants of a job a search takes: those that can be the answer, as far as traces can tell."""

from __future__ import annotations

import dataclasses
import math
import threading

import pytest

from bexplore.actions.trace import trace_job
from bexplore.config.variants import JobVariant
from bexplore.errors import UserInputError
from bexplore.exploration import variants
from bexplore.exploration.variants import make_priors, operations_over_file, select_variants, trace_all
from bexplore.host.records import from_record
from bexplore.job import CompileSettings, Job, Precision
from bexplore.run.selection import Selection, TracedVariant
from bexplore.search.space import MemoryPrior
from bexplore.trace.cost_model import CostModel
from tests.unit.config.builders import Folder, sections
from tests.unit.exploration.variant_builders import GIB, trace

SIZES = (1, 2, 3, 4, 6, 8)
JOB = Job(workload="decoder")


def variant(name: str, cost_model: CostModel | None = None, **changes) -> TracedVariant:
    job = dataclasses.replace(JOB, activation_checkpointing=name, **changes)
    return TracedVariant(name=name, settings={"name": name}, job=job, cost_model=cost_model)


def selected(*traced: TracedVariant, budget_gib: float = 4.0, is_automatic: bool = False) -> Selection:
    return select_variants(traced, budget_bytes=budget_gib * GIB, sizes=SIZES, is_automatic=is_automatic)


def names(selection: Selection) -> list[str]:
    return [one.name for one in selection.searched]


def reason(selection: Selection, name: str) -> str:
    return next(one.reason for one in selection.left_out if one.name == name)


def test_variants_that_trade_memory_for_operations_are_searched():
    found = selected(variant("none", trace()), variant("full", trace(gib_a_sample=0.5, flops=130)))

    assert names(found) == ["none", "full"]
    assert found.left_out == ()
    assert not found.is_plain


def test_what_cannot_fit_at_the_smallest_size_is_left_out_with_its_numbers():
    found = selected(variant("none", trace()), variant("huge", trace(fixed_gib=5.0, gib_a_sample=0.1, flops=50)))

    assert names(found) == ["none"]
    assert reason(found, "huge") == "size 1, the smallest, needs 5.10 GiB by the trace; the budget is 4.00 GiB"
    assert found.is_plain


def test_what_fits_within_the_error_of_the_trace_is_searched():
    barely = trace(fixed_gib=3.2, gib_a_sample=1.0, flops=50)  # 4.2 GiB, and the error is 2 %

    assert names(selected(variant("none", trace()), variant("barely", barely))) == ["none", "barely"]


def test_the_files_own_settings_stay_even_where_they_fit_at_no_size():
    found = selected(variant("none", trace(fixed_gib=9.0)), variant("full", trace(flops=130)))

    assert names(found) == ["none", "full"]


def test_what_another_variant_beats_in_memory_operations_and_bytes_at_every_size_is_left_out():
    found = selected(
        variant("none", trace()),
        variant("full", trace(gib_a_sample=0.5, flops=130)),
        variant("selective", trace(gib_a_sample=0.6, flops=140)),
    )

    assert names(found) == ["none", "full"]
    assert reason(found, "selective") == "needs no less memory than full, and no fewer operations"


@pytest.mark.parametrize("better", ["memory", "operations", "bytes"])
def test_a_variant_that_is_better_in_one_of_them_is_searched(better):
    costs = {"memory": trace(gib_a_sample=0.4, flops=140, moved=12)}
    costs |= {"operations": trace(gib_a_sample=0.6, flops=120, moved=12), "bytes": trace(0.5, 0.6, 140, moved=8)}
    full = variant("full", trace(gib_a_sample=0.5, flops=130))

    assert names(selected(variant("none", trace()), full, variant("other", costs[better]))) == ["none", "full", "other"]


def test_a_variant_that_is_better_at_some_sizes_only_leaves_none_out():
    found = selected(
        variant("none", trace()),
        variant("full", trace(fixed_gib=1.0, gib_a_sample=0.5)),
        variant("selective", trace(fixed_gib=1.6, gib_a_sample=0.3)),
    )

    assert names(found) == ["none", "full", "selective"]


def test_of_two_equal_variants_the_first_is_searched():
    found = selected(variant("none", trace()), variant("a", trace(1, 0.5, 130)), variant("b", trace(1, 0.5, 130)))

    assert names(found) == ["none", "a"]
    assert "than a" in reason(found, "b")


def test_a_variant_that_costs_what_the_files_own_does_is_left_out_and_the_files_own_never():
    better_than_own = variant("better", trace(gib_a_sample=0.5))

    assert names(selected(variant("none", trace()), variant("same", trace()))) == ["none"]
    assert names(selected(variant("none", trace()), better_than_own)) == ["none", "better"]


@pytest.mark.parametrize(
    "change",
    [
        {"precision": Precision.BFLOAT16},
        {"compile": CompileSettings(mode="max-autotune")},
        {"optimizer_arguments": {"fused": True}},
        {"model": {"arguments": {"kernel": "flash"}}},
    ],
)
def test_operations_tell_nothing_of_programs_that_differ_in_more_than_what_they_recompute(change):
    worse = variant("worse", trace(gib_a_sample=1.5, flops=200), **change)

    assert names(selected(variant("none", trace()), worse)) == ["none", "worse"]


def test_a_variant_that_cannot_be_traced_is_searched():
    assert names(selected(variant("none", trace()), variant("odd"))) == ["none", "odd"]
    assert names(selected(variant("none"), variant("full", trace(flops=130)))) == ["none", "full"]


def test_auto_leaves_out_what_cannot_be_built_or_traced():
    odd = TracedVariant(name="odd", settings={}, job=JOB, reason="The model has no list of repeated blocks.")
    found = selected(variant("none", trace()), odd, is_automatic=True)

    assert names(found) == ["none"]
    assert reason(found, "odd") == "The model has no list of repeated blocks."


def test_auto_takes_the_files_own_settings_alone_where_memory_does_not_bind():
    own, full = variant("none", trace()), variant("full", trace(gib_a_sample=0.5, flops=130))

    plenty = selected(own, full, budget_gib=100.0, is_automatic=True)
    assert plenty.is_plain
    assert reason(plenty, "full") == "memory does not bind: size 8, the largest, fits with the file's own settings"
    assert names(selected(own, full, budget_gib=100.0)) == ["none", "full"]
    assert names(selected(own, full, budget_gib=9.1, is_automatic=True)) == ["none", "full"]  # not by three errors


def test_a_selection_is_the_same_after_a_run_has_stored_it():
    found = selected(
        variant("none", trace()), variant("full", trace(1, 0.5, 130)), variant("odd"), variant("huge", trace(9.0))
    )

    assert from_record(Selection, found.as_record()) == found


def test_a_trace_or_the_reason_for_none_belongs_to_a_variant():
    own = JobVariant(values={"activation_checkpointing": "none"}, job=JOB, name="x")

    assert TracedVariant.of(own, trace()).cost_model == trace()
    assert TracedVariant.of(own, "no graph").reason == "no graph"
    assert TracedVariant.of(own, "no graph").cost_model is None


# What the search knows of them


def prior(cost_model: CostModel | None) -> MemoryPrior:
    return MemoryPrior(peak_bytes=cost_model and cost_model.peak_memory_bytes, budget_bytes=4 * GIB)


def test_a_variant_is_expected_to_be_slower_by_the_operations_that_it_adds():
    own, full, odd = make_priors(
        [variant("none", trace()), variant("full", trace(1, 0.5, 125)), variant("odd")], prior, size=4
    )

    assert (own.log_speed, odd.log_speed) == (0.0, 0.0)
    assert full.log_speed == pytest.approx(math.log(1 / 1.25))
    assert full.memory.peak_bytes(4) == 3 * GIB
    assert odd.memory.peak_bytes is None


def test_operations_over_the_files_own_are_unknown_without_both_traces():
    known = [variant("none", trace()), variant("full", trace(1, 0.5, 125)), variant("odd")]

    assert operations_over_file(known, 1, 4) == pytest.approx(1.25)
    assert operations_over_file(known, 2, 4) is None
    assert operations_over_file([variant("odd"), variant("full", trace())], 1, 4) is None


# Tracing all of them


@pytest.fixture
def refusing(monkeypatch):
    """A trace that refuses to recompute blocks."""

    def traced(job, run_dir, on_progress, **given):
        if job.activation_checkpointing == "full":
            raise UserInputError("The model has no list of repeated blocks.", hint="Name its blocks.")
        return trace()

    monkeypatch.setattr(variants, "recall_or_trace", traced)


def test_a_variant_that_the_user_has_named_and_that_cannot_be_built_is_refused_by_its_name(tmp_path, refusing):
    lists = {"activation_checkpointing": ["none", "selective", "full"]}
    config = Folder(tmp_path).load(sections(explore={"settings": lists}))

    with pytest.raises(UserInputError, match=r"activation_checkpointing=full: The model has no list") as refused:
        trace_all(config, tmp_path, gpu=None, fresh=False)

    assert refused.value.hint == "Name its blocks."


def test_of_auto_a_variant_that_cannot_be_built_says_why(tmp_path, refusing):
    config = Folder(tmp_path).load(sections(explore={"settings": "auto", "compile": False}))

    assert trace_all(config, tmp_path, gpu=None, fresh=False) == [
        trace(),
        trace(),
        "The model has no list of repeated blocks.",
    ]


def test_variants_are_traced_at_the_same_time_and_keep_their_order(tmp_path, monkeypatch):
    both_run = threading.Barrier(2, timeout=120)

    def traced(job, run_dir, on_progress, **given):
        both_run.wait()
        return job.activation_checkpointing

    monkeypatch.setattr(variants, "recall_or_trace", traced)
    monkeypatch.setattr(variants, "num_usable_processors", lambda: 8)
    lists = {"activation_checkpointing": ["none", "full"]}
    config = Folder(tmp_path).load(sections(explore={"settings": lists}))

    assert trace_all(config, tmp_path, gpu=None, fresh=False) == ["none", "full"]


def test_a_job_with_one_variant_is_traced_alone(tmp_path, refusing):
    assert trace_all(Folder(tmp_path).load(sections()), tmp_path, gpu=None, fresh=False) == [trace()]


def test_a_job_of_any_device_is_traced_for_the_one_that_is_meant_with_each_of_its_settings(tmp_path, monkeypatch):
    explore = {"device": "auto", "settings": {"activation_checkpointing": ["none", "full"]}}
    config = Folder(tmp_path).load(sections(explore=explore))
    traced: list[Job] = []

    def recall(job, *_, **__):
        traced.append(job)
        return trace()

    monkeypatch.setattr(variants, "recall_or_trace", recall)
    records = trace_job(config, device_name="h100", model_dir=str(tmp_path / "x"))

    assert [job.device for job in traced] == ["cuda:0", "cuda:0"]
    assert len(records) == 2
