from __future__ import annotations

import pytest

from bexplore.cli.field_names import name_options

# What a message names -> what the command line shows.
NAMED = {
    "start over with `fresh=True`; nothing was overwritten": "start over with --fresh; nothing was overwritten",
    "give `replicas=2`": "give --replicas 2",
    "leave `replicas` out": "leave --replicas out",
    "name it `trace_path=trace.json`, or trace.json.gz": "name it --profile trace.json, or trace.json.gz",
    "and `allow_code=False` refuses that": "and --no-code refuses that",
    "`allow_code=True` if you trust the file": "leave out --no-code if you trust the file",
    "set `micro_batch_size` to `explore`": "set `micro_batch_size` to `explore`",
}


@pytest.mark.parametrize("text", NAMED)
def test_a_field_is_shown_as_the_option_that_sets_it(text):
    assert name_options(text) == NAMED[text]
