"""DeepSpeed's JSON: `train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x world size`.

`"auto"` is not a search: Transformers and accelerate copy the value from their arguments.
"""

from __future__ import annotations

from collections.abc import Iterator

from bexplore.config.dialects.family import Family, Signature
from bexplore.config.dialects.numbers import Numbers
from bexplore.config.document.values import Values

_NEOX = ("num_layers", "hidden_size", "num_attention_heads")


def _rules(numbers: Numbers, values: Values) -> Iterator[str]:
    if values.get("fp16.enabled") is True and values.get("bf16.enabled") is True:
        yield "fp16 and bf16 are both enabled: DeepSpeed's configuration asserts that one of them is"
    stage = values.get("zero_optimization.stage")
    if stage is not None and stage != "auto" and stage not in (0, 1, 2, 3):
        yield f"zero_optimization.stage is {stage}; DeepSpeed has 0, 1, 2 and 3"
    keys = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    if not any(values.get(key) is not None for key in keys[:2]):
        yield f"none of {keys[0]} and {keys[1]} is given: DeepSpeed's configuration asserts that one of them is"


DEEPSPEED = Family(
    name="deepspeed",
    title="DeepSpeed",
    source="deepspeed.runtime.config: DeepSpeedConfig._configure_train_batch_size and _batch_assertion",
    signatures=(
        Signature(any_of=("train_micro_batch_size_per_gpu", "train_batch_size"), none_of=_NEOX),
        Signature(
            all_of=("zero_optimization",),
            any_of=("zero_optimization.stage", "fp16", "bf16", "gradient_clipping"),
            none_of=_NEOX,
        ),
        Signature(any_of=("zero_optimization.stage",), none_of=_NEOX),
    ),
    micro_batch_size=("train_micro_batch_size_per_gpu",),
    global_batch_size=("train_batch_size",),
    accumulation=("gradient_accumulation_steps",),
    memory=("zero_optimization", "fp16", "bf16", "amp", "activation_checkpointing", "optimizer", "tensor_parallel"),
    probing={"autotuning.enabled": False, "elasticity.enabled": False},
    rules=_rules,
    note="auto there means: copied from the arguments of Transformers or accelerate",
)
