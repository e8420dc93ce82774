"""Options, keys and variables with which a training goes on from a checkpoint of its own.

Loading the weights of another model is something else: a training begins with them, as it does with random ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from bexplore.config.command import PLACEHOLDERS
from bexplore.config.dialects.command_words import Given, Source

_OFF = ("", "none", "null", "~", "false", "no", "off", "0", "never", "disabled")
_PLACEHOLDER = re.compile(rf"\{{({'|'.join(PLACEHOLDERS)})\}}")
# Words of a name with which `resume` and its like still mean the training's own state. Others name something else:
# `resume_download` a file, `continue_on_error` a failure.
_OF_STATE = (
    r"(?:_(?:from|at|if|last|latest|exists?|possible|enabled?|once|path|dir|folder|file|checkpoints?|ckpts?"
    r"|training|train|run|state|step|epoch|iter|iteration))*"
)
_NEGATIONS = frozenset(("no", "not", "dont", "never", "without", "skip", "disable", "ignore"))
# A tracker's run goes on, not the training: WANDB_RESUME, `logger.wandb.resume`.
_TRACKERS = frozenset(("wandb", "mlflow", "comet", "neptune", "swanlab", "clearml", "tensorboard", "aim"))
# Sections whose checkpoint is the training's; `model.params.ckpt_path` is a model's own file of weights.
_OF_TRAINING = frozenset(
    (
        *("trainer", "training", "train", "fit", "checkpoint", "checkpointing", "ckpt"),
        *("run", "cfg", "config", "args", "model_args"),  # `MODEL_ARGS` holds all arguments of Megatron-LM
    )
)
# Endings of files that hold a checkpoint. A folder has none.
_OF_CHECKPOINTS = ("", ".pt", ".pth", ".ckpt", ".bin", ".tar", ".safetensors", ".pkl", ".distcp", ".nemo")


def _is_any(value: Any) -> bool:
    return True


def _is_later_step(value: Any) -> bool:
    """Return whether a step is not the first; -1 stands for the latest that there is."""
    return not re.fullmatch(r"-\d+|0+", str(value).strip())


def _may_be_checkpoint(value: Any) -> bool:
    """Return whether a value may name a checkpoint: a folder, or a file that ends as one."""
    text = str(value).strip()
    is_number = re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?", text.lower()) is not None
    return not is_number and PurePath(text).suffix.lower() in _OF_CHECKPOINTS


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeKey:
    """A key that makes a training go on from a checkpoint.

    Attributes:
        pattern: Its last part, or its last two with `_` between them.
        of: Whose key it is.
        means: Whether a value that is not off means a checkpoint.
        unless: Keys beside it with which the weights alone are loaded.
        is_of_training: Whether it means that only at the top or in a section of the training. A variable stands in
            none, and a model's section names its weights.
        families: Families whose files have it; empty where it means the same everywhere.
        in_words: Whether it means that in the words of any command, too, where `families` are named.
    """

    pattern: re.Pattern[str]
    of: str
    means: Callable[[Any], bool] = _is_any
    unless: tuple[str, ...] = ()
    is_of_training: bool = False
    families: tuple[str, ...] = ()
    in_words: bool = False

    def names(self, given: Given, family: str | None) -> bool:
        """Return whether a value stands at this key, whatever the value."""
        parents = given.names[:-1]
        if self.families and family not in self.families and not (self.in_words and given.source is Source.WORD):
            return False
        if self.is_of_training and (given.source is Source.VARIABLE or not _OF_TRAINING.issuperset(parents)):
            return False
        return any(self.pattern.fullmatch("_".join(given.names[-count:])) for count in (1, 2))


# Further sources of the first: --resume of timm and detectron2, --resume-from of mmcv, auto_resume_from_checkpoints of
# axolotl, resume_if_exists of NeMo, autoresume of Composer, resume_checkpoint_path of nanotron.
RESUME_KEYS = (
    ResumeKey(
        pattern=re.compile(rf"(?:\w+_)?(?:auto)?resum(?:e|ing){_OF_STATE}"), of="resume_from_checkpoint of transformers"
    ),
    ResumeKey(pattern=re.compile(rf"(?:auto_)?continue{_OF_STATE}"), of="continue_once of fairseq"),
    ResumeKey(
        pattern=re.compile(r"restore(?:_from)?_(?:file|checkpoint|training|run)"),
        of="restore-file of fairseq",
        unless=("reset_optimizer",),
    ),
    ResumeKey(pattern=re.compile("ckpt_path"), of="ckpt_path of Lightning", is_of_training=True),
    ResumeKey(pattern=re.compile("load_step"), of="load_step of torchtitan", means=_is_later_step),
    ResumeKey(
        pattern=re.compile("load"),
        of="load of Megatron-LM and GPT-NeoX",
        means=_may_be_checkpoint,
        unless=("finetune",),
        is_of_training=True,
        families=("megatron-lm", "megatron-bridge", "gpt-neox"),
        in_words=True,
    ),
    ResumeKey(
        pattern=re.compile(r"load(?:_training)?_(?:checkpoint|ckpt)(?:_(?:path|dir|folder|file|step|iter|iteration))?"),
        of="load_training_checkpoint of DeepSpeedExamples",
        unless=("load_weights_only",),
        is_of_training=True,
    ),
    ResumeKey(
        pattern=re.compile("load_path"),
        of="load_path of Composer and OLMo",
        unless=("load_weights_only", "reset_trainer_state"),
        families=("composer", "olmo", "olmo-core"),
    ),
    ResumeKey(
        pattern=re.compile("init_from"), of="init_from of nanoGPT", means=lambda value: str(value).strip() == "resume"
    ),
)


def that_resume(everything: Sequence[Given], *, family: str | None = None) -> Iterator[tuple[Given, ResumeKey]]:
    """Yield what makes a training go on from a checkpoint, each with the key that it is.

    Args:
        everything: All that the training is given.
        family: Family of its file; None for none.
    """
    on = {given.name for given in everything if _is_on(given)}
    for given in everything:
        key = next((one for one in RESUME_KEYS if one.names(given, family)), None)
        if key is None or not _is_on(given) or _is_of_something_else(given) or on.intersection(key.unless):
            continue
        if given.value is None or key.means(given.value):
            yield given, key


def _is_on(given: Given) -> bool:
    """Return whether a value is neither off nor filled in by bexplore: a start's own folder holds no checkpoint."""
    if given.value is None:
        return given.source is Source.WORD  # an option without a value; a key without one is null
    text = str(given.value).strip()
    return text.lower() not in _OFF and not _PLACEHOLDER.search(text)


def _is_of_something_else(given: Given) -> bool:
    words = {word for name in given.names for word in name.split("_")}
    return bool(words & _TRACKERS or set(given.name.split("_")) & _NEGATIONS)
