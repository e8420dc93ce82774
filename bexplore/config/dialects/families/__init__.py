"""The families of training configurations, those with the same keys or rules in one file."""

from __future__ import annotations

from collections.abc import Mapping

from bexplore.config.dialects.families.megatron import (
    ACCELERATE,
    DEEPSPEED,
    GPT_NEOX,
    MEGATRON_BRIDGE,
    MEGATRON_LM,
    NANOTRON,
    NEMO,
)
from bexplore.config.dialects.families.pytorch import (
    COMPOSER,
    LIGHTNING_CLI,
    LITGPT,
    OLMO,
    OLMO_CORE,
    TORCHTITAN,
    TORCHTUNE,
)
from bexplore.config.dialects.families.transformers import AXOLOTL, LLAMA_FACTORY, LLAMA_FACTORY_V1, TRANSFORMERS, TRL
from bexplore.config.dialects.family import Family

# In the order in which they are tried: a family whose keys are a part of another's stands behind it.
FAMILIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        AXOLOTL,
        LLAMA_FACTORY,
        LLAMA_FACTORY_V1,
        TRL,
        TRANSFORMERS,
        NEMO,
        LITGPT,
        MEGATRON_BRIDGE,
        MEGATRON_LM,
        NANOTRON,
        GPT_NEOX,
        DEEPSPEED,
        ACCELERATE,
        OLMO,
        OLMO_CORE,
        COMPOSER,
        TORCHTITAN,
        TORCHTUNE,
        LIGHTNING_CLI,
    )
}
