from __future__ import annotations

import pytest

from bexplore.cli.field_names import name_options
from bexplore.cli.guard import name_options_of_report
from bexplore.guard.report import NotCompared, Report

# What a message names -> what the command line shows.
NAMED = {
    "start over with `fresh=True`; nothing was overwritten": "start over with --fresh; nothing was overwritten",
    "give `replicas=2`": "give --replicas 2",
    "leave `replicas` out": "leave --replicas out",
    "name it `trace_path=trace.json`, or trace.json.gz": "name it --profile trace.json, or trace.json.gz",
    "and `allow_code=False` refuses that": "and --no-code refuses that",
    "`allow_code=True` if you trust the file": "leave out --no-code if you trust the file",
    "set `micro_batch_size` to `explore`": "set `micro_batch_size` to `explore`",
    "or give `micro_batch_size=N`": "or give --micro-batch-size N",
    "name `baseline_path=FILE`, or `against=main`": "name --baseline FILE, or --against main",
    "write a new baseline with `update_baseline`, in": "write a new baseline with --update, in",
}


@pytest.mark.parametrize("text", NAMED)
def test_a_field_is_shown_as_the_option_that_sets_it(text):
    assert name_options(text) == NAMED[text]


def test_a_report_of_the_guard_names_options_in_advice_and_in_reasons():
    missing = NotCompared(title="times", reason="no size is known: give `micro_batch_size=N`")
    report = Report(config="job.yaml", reference="", not_compared=(missing,), advice=("`against=REF` measures both",))
    named = name_options_of_report(report)
    assert [one.reason for one in named.not_compared] == ["no size is known: give --micro-batch-size N"]
    assert named.advice == ("--against REF measures both",)
