"""The families of training configurations, one file each."""

from __future__ import annotations

from collections.abc import Mapping

from bexplore.config.dialects.families.accelerate import ACCELERATE
from bexplore.config.dialects.families.axolotl import AXOLOTL
from bexplore.config.dialects.families.composer import COMPOSER
from bexplore.config.dialects.families.deepspeed import DEEPSPEED
from bexplore.config.dialects.families.gpt_neox import GPT_NEOX
from bexplore.config.dialects.families.lightning_cli import LIGHTNING_CLI
from bexplore.config.dialects.families.litgpt import LITGPT
from bexplore.config.dialects.families.llama_factory import LLAMA_FACTORY, LLAMA_FACTORY_V1
from bexplore.config.dialects.families.megatron import MEGATRON_BRIDGE, MEGATRON_LM
from bexplore.config.dialects.families.nanotron import NANOTRON
from bexplore.config.dialects.families.nemo import NEMO
from bexplore.config.dialects.families.olmo import OLMO, OLMO_CORE
from bexplore.config.dialects.families.torchtitan import TORCHTITAN
from bexplore.config.dialects.families.torchtune import TORCHTUNE
from bexplore.config.dialects.families.transformers import TRANSFORMERS, TRL
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
