"""Lightning CLI: YAML with `trainer`, `model` and `data`; the batch size is an argument of one of the last two."""

from __future__ import annotations

from bexplore.config.dialects.family import Family, Signature
from bexplore.config.document.reader import KeyPath
from bexplore.config.document.values import Values, paths_below

_PLACES = ("data.init_args.batch_size", "data.batch_size", "model.init_args.batch_size")
_SIZES = ("batch_size", "train_batch_size", "micro_batch_size")
_OF_EVALUATION = ("val", "test", "eval", "predict")


def _find_size(values: Values) -> KeyPath | None:
    """Return the shortest path to a batch size of the training data: its name is an argument of the user's class."""
    found = [
        path
        for section in ("data", "model")
        for path in paths_below(values.values.get(section), (section,))
        if path[-1] in _SIZES and not any(str(key).startswith(_OF_EVALUATION) for key in path)
    ]
    return min(found, key=len, default=None)


LIGHTNING_CLI = Family(
    name="lightning-cli",
    title="Lightning CLI",
    source="lightning.pytorch.cli.LightningCLI; Trainer: accumulate_grad_batches, devices, num_nodes",
    signatures=(
        Signature(
            all_of=("trainer",),
            any_of=("model.class_path", "data.class_path", *_PLACES, "trainer.max_epochs"),
            none_of=("trainer.init", "model.micro_batch_size", "defaults", "exp_manager"),
        ),
    ),
    micro_batch_size=_PLACES,
    find_size=_find_size,
    accumulation=("trainer.accumulate_grad_batches",),
    replicas=(("trainer.devices",), ("trainer.num_nodes",)),
    output_dir=("trainer.default_root_dir",),
    memory=("trainer.precision", "trainer.strategy", "model", "trainer.gradient_clip_val"),
    note="-- python main.py fit --config {config}",
)
