"""What a program takes from outside, and the call of it that has a value at each place that needs one."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

# Names of what a start needs, nearest first, without `_` and `-`. Sources: the arguments of transformers, DeepSpeed,
# Megatron-LM, timm, torchvision's references, PyTorch's examples, detectron2, mmengine and OpenNMT.
NAMES = {
    "micro_batch_size": (
        *("microbatchsize", "perdevicetrainbatchsize", "trainmicrobatchsizepergpu", "pergputrainbatchsize"),
        *(
            "batchgpu",
            "batchpergpu",
            "devicebatchsize",
            "perdevicebatchsize",
            "batchsizeperdevice",
            "batchsizepergpu",
            "pergpubatchsize",
        ),
        *("localbatchsize", "samplespergpu", "trainbatchsize", "batchsizetrain", "batchsize", "minibatchsize"),
        *("mbs", "microbatch", "trainbs", "bsize", "bsz", "bs", "trainbatch", "batch", "b"),
        "perbatch",  # the end of speakers_per_batch
    ),
    "accumulation": (
        *("gradientaccumulationsteps", "gradaccumsteps", "gradaccumulationsteps", "accumulationsteps", "accumsteps"),
        *("accumulation", "accum", "gradaccum", "gradientaccumulation", "accumulategradbatches", "accumiter"),
        *("gradaccumulation", "accumgrad", "accumfreq", "gradacc", "updatefreq"),  # wenet, open_clip, ConvNeXt
    ),
    "output_dir": (
        *("hydra.run.dir", "outputdir", "outdir", "outputpath", "outputfolder", "output", "savedir", "savepath"),
        *("logdir", "checkpointdir", "checkpointsdir", "ckptdir", "defaultrootdir", "workdir", "expdir", "rundir"),
        *(
            "resultsdir",
            "resultdir",
            "resultpath",
            "resultspath",
            "experimentdir",
            "savefolder",
            "outf",
            "out",
            "checkpoints",
        ),
    ),
}
# `sw`: the windows of `sliding_window_inference` of MONAI.
OF_EVALUATION = re.compile(r"(?<![a-z])(val|valid|validation|eval|evaluation|test|predict|inference|sw)(?![a-z])")
OF_TRAINING = re.compile(r"train|fit|tune|learn")
# Words of names of batches that no single pass takes, of what is counted in place of samples, and of switches.
_OF_OTHERS = {"total", "global", "buffer", "replay", "tokens", "frames", "steps", "auto"}
_OF_LAUNCHER = "localrank"  # an option that torch.distributed.launch gives a script
FAR = 100  # the rank of a name that ends in a known one, such as `unet_batch_size`, behind all known ones
FARTHEST = 2 * FAR  # of a parameter whose help text tells it, behind all that are named so
# What help texts begin with, or hold, where the name says nothing. Sources: those of NeRF (`--N_rand`), LightGCN
# (`--bpr_batch`), 3D-ResNets (`--result_path`) and VideoPose3D (`--checkpoint`).
_HELP = {
    "micro_batch_size": re.compile(r"^\W*(?:\w+ ){0,2}(?:mini|micro)?[- ]?batch[- ]?sizes?\b"),
    "output_dir": re.compile(
        r"\b(?:output|result|checkpoint|log|save|experiment)s?\b[^.]*\b(?:dir|directory|folder|path)\b"
        r"|\b(?:dir|directory|folder)\b[^.]*\b(?:output|result|checkpoint|log|save|store|write)"
        r"|\bpath\b[^.]*\b(?:output|result|save|store|write)"  # but a path to a checkpoint is read as a rule
        r"|^where to (?:store|save|write|put)\b|^save (?:results? )?to\b"  # the latter of YOLOv5's `--project`
    ),
}
_HELP_OF_OTHERS = re.compile(
    r"\b(?:total|global|effective|buffer|replay|load|loaded|resume|restore|continue|pre-?trained|read|input|init|from"
    r"|exist|latest)"
)
# What few trainings do without, though its option has no default; but not what they go on from, nor a number.
_OF_INPUT = re.compile(r"(?<![a-z])(?:data|datasets?|corpus|train|root|model|arch|config|cfg|task)")
_OF_LATER = re.compile(
    r"resume|restore|load|pretrained|checkpoint|ckpt|weights|cache|output|save|\b(?:hub|distill|size|rank|steps|iters|num)\b"
)
# Words in the name of a folder that a training writes, the nearest first, and of a place: `model_save_dir`.
_WRITTEN = (
    *("outputs", "output", "out", "results", "result", "save", "saved"),
    *("checkpoints", "experiment", "exp", "logs"),
)
_PLACES = {"dir", "directory", "folder", "path", "root"}
# Options of a file that a training writes. Source: PyTorch's examples (`--save model.pt`).
WRITTEN_FILES = (
    *("save", "savepath", "savefile", "savemodel", "savemodelpath", "modelsavepath"),
    *("output", "outputpath", "outputfile", "out", "outfile", "outf"),
)
_ENABLES = re.compile(r"^(?:use|with|enable|do)(?=.)")  # before what a switch switches on
# Folders that a training reads, of which a help text may say what wrote there; and names of runs below a folder of the
# program's own, of which it says where their results lie.
_OF_NO_FOLDER = re.compile(r"\b(?:data|datasets?|corpus)\b|name$|\b(?:id|tag|suffix)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A value that a program takes."""

    name: str  # as the program calls it, such as `train.batch_size`
    head: str  # what stands before the value: `--batch-size`, or `batch_size=` in one word; empty for a positional one
    is_required: bool = False  # whether the program refuses to start without it
    default: Any = None  # its value without one; None where there is none or it is not a literal
    is_unset: bool = False  # whether it has no value without one, and is not required
    choices: tuple[str, ...] = ()  # values that it takes; empty where any
    is_variable: bool = False  # whether it is a variable of the environment
    given_to: str = ""  # the name or argument that the program gives a variable's value to; empty where it has none
    help_text: str = ""  # what the program says of it; empty where it says nothing

    @property
    def names(self) -> tuple[str, ...]:
        """What says what it is; of a variable also what its value is given to, where that is more than a letter."""
        return (self.name, self.head.rstrip("="), *([self.given_to] if len(self.given_to) > 1 else []))

    @property
    def is_positional(self) -> bool:
        """Whether its place in the command is its name."""
        return not self.head and not self.is_variable

    @property
    def spelt(self) -> str:
        """The parameter as messages name it."""
        return self.head.rstrip("=") or self.name

    @property
    def told_default(self) -> str:
        """Its default as messages tell it behind its name; empty where there is none."""
        return "" if self.default in (None, "") else f" in place of {self.default}"

    @property
    def stand_in(self) -> str:
        """The word in capitals that stands for a value that only the user knows."""
        return re.sub(r"\W+", "_", self.name.rpartition(".")[2]).strip("_").upper() or "VALUE"

    def words(self, value: str) -> list[str]:
        """Return the words that give it a value."""
        if self.head.endswith("="):
            return [f"{self.head}{value}"]
        return [self.head, value] if self.head else [value]


@dataclass(slots=True)
class Interface:
    """The parameters of a program, or of one of its commands."""

    style: str  # what reads them, such as `argparse`
    parameters: list[Parameter] = field(default_factory=list)  # in the order in which positional ones are given
    # Its commands by name; empty for none.
    commands: dict[str, Interface] = field(default_factory=dict)
    # Whether it also runs without one of its commands.
    runs_alone: bool = False
    # Its flags without a value that are off by default.
    switches: list[str] = field(default_factory=list)


Chain = list[tuple[str, Interface]]  # of commands: the program itself as "", then a command, then a command of that


@dataclass(slots=True, kw_only=True)
class Call:
    """The words behind the name of a program."""

    words: list[str] = field(default_factory=list)  # with placeholders
    variables: dict[str, str] = field(default_factory=dict)  # of the environment, with placeholders
    chosen: dict[str, Parameter] = field(default_factory=dict)  # placeholder -> the parameter that takes it
    further: list[Parameter] = field(default_factory=list)  # output folders beside the chosen one, which take it too
    # Parameters whose value only the user knows; the words have a stand-in for each.
    missing: list[Parameter] = field(default_factory=list)
    # Options that are left out and have no default, though few trainings do without what their names say.
    doubtful: list[Parameter] = field(default_factory=list)


def spell(name: str) -> str:
    """Return a name as the table has it: `--Batch-Size` and `batchSize` as `batchsize`."""
    return name.lower().lstrip("-+").replace("-", "").replace("_", "")


def rank(name: str, placeholder: str) -> int | None:
    """Return how near a name is to what a placeholder stands for, 0 the nearest; None where it is another thing."""
    known = NAMES[placeholder]
    for spelt in (spell(name), spell(name.rpartition(".")[2])):
        if spelt in known:
            return known.index(spelt)
    if _OF_OTHERS.intersection(re.split(r"[-_.]+", name.lower())):
        return None
    if placeholder == "output_dir":
        words = re.split(r"[-_.]+", name.lower().lstrip("-"))
        written = [index for index, one in enumerate(_WRITTEN) if one in words and not _PLACES.isdisjoint(words)]
        is_other = _OF_NO_FOLDER.search(" ".join(words)) or _HELP_OF_OTHERS.search(" ".join(words))
        return FAR + min(written) if written and not is_other else None
    ends = [index for index, one in enumerate(known) if len(one) > len("batch") and spell(name).endswith(one)]
    return FAR + min(ends) if ends and placeholder == "micro_batch_size" else None


def chains(interface: Interface, name: str = "") -> Iterator[Chain]:
    """Yield each way from a program through its commands to one that has none."""
    if not interface.commands or interface.runs_alone:
        yield [(name, interface)]
    for word, command in interface.commands.items():
        yield from ([(name, interface), *rest] for rest in chains(command, word))


def choose(chain: Chain, variables: Sequence[Parameter] = ()) -> dict[str, Parameter]:
    """Return the parameter of a call for each placeholder that has one; a variable where no option does."""
    switches = {_ENABLES.sub("", spell(name)) for _, interface in chain for name in interface.switches}
    parameters = (parameter for _, interface in reversed(chain) for parameter in interface.parameters)
    own = [one for one in parameters if not _is_switched_off(one, switches)]
    chosen = {}
    for placeholder in NAMES:
        near = _nearest(own, placeholder) or _nearest(variables, placeholder)
        if near is not None:
            chosen[placeholder] = near
    return chosen


def _nearest(parameters: Sequence[Parameter], placeholder: str) -> Parameter | None:
    named = [(name, one) for one in parameters for name in one.names if _fits(one, placeholder)]
    ranks = [(rank(name, placeholder), one) for name, one in named]
    known = [(found, one) for found, one in ranks if found is not None]
    known = known or [(FARTHEST, one) for _, one in named if _is_told(one, placeholder)]
    if placeholder == "output_dir" and not known:
        known = [(0, one) for one in parameters if is_written_file(one.name, one.default)]
    return min(known, key=lambda pair: pair[0])[1] if known else None


def _is_switched_off(parameter: Parameter, switches: Collection[str]) -> bool:
    """Return whether a size is of a part that is off by default: `--gail-batch-size` beside the switch `--gail`."""
    is_far = (rank(parameter.name, "micro_batch_size") or 0) >= FAR
    return is_far and any(len(one) > 2 and spell(parameter.name).startswith(one) for one in switches)


def is_written_file(option: str, value: Any) -> bool:
    """Return whether an option takes the name of a file that a training writes, as of `--save model.pt`."""
    is_file = isinstance(value, str) and PurePath(value).suffix[1:].isalpha()
    return is_file and spell(option.rpartition(".")[2]) in WRITTEN_FILES


def find_written_folders(chain: Chain) -> list[Parameter]:
    """Return the options of a call that are output folders with a default: a training may write to several."""
    parameters = [one for _, interface in chain for one in interface.parameters if isinstance(one.default, str)]
    named = [one for one in parameters if rank(one.name, "output_dir") is not None and _fits(one, "output_dir")]
    return [one for one in named if one.default and (spell(one.name).endswith(tuple(_PLACES)) or "/" in one.default)]


def fill(placeholder: str, option: str, value: Any) -> str:
    """Return what an option takes for a placeholder: the name of a file in the output folder where it has one."""
    if placeholder == "output_dir" and is_written_file(option, value):
        return f"{{output_dir}}/{PurePath(value).name}"
    return f"{{{placeholder}}}"


def _is_told(parameter: Parameter, placeholder: str) -> bool:
    """Return whether the help text of a parameter says that it is what a placeholder stands for."""
    name, text = parameter.name.lower().replace("_", " ").replace("-", " "), parameter.help_text.lower()
    if placeholder not in _HELP or any(_HELP_OF_OTHERS.search(one) for one in (name, text)):
        return False
    if OF_EVALUATION.search(text) or (placeholder == "output_dir" and _OF_NO_FOLDER.search(name)):
        return False
    return _HELP[placeholder].search(text) is not None


def _fits(parameter: Parameter, placeholder: str) -> bool:
    default = parameter.default
    if isinstance(default, bool | float):
        return False
    if placeholder != "output_dir":
        least = 0 if placeholder == "accumulation" else 1  # 0 accumulates nothing
        if isinstance(default, int) and default < least:
            return False  # the program computes it
        return OF_EVALUATION.search(parameter.name.lower().replace("_", " ")) is None
    # A file, such as model.pt, is taken where there is no folder.
    return default is None or (isinstance(default, str) and not PurePath(default).suffix[1:].isalpha())


def find_chains(interfaces: Sequence[Interface], variables: Sequence[Parameter] = ()) -> list[Chain]:
    """Return the calls that take a size: those named as training where some are, else all.

    A command that takes none itself, of a program that runs alone, is not needed.
    """
    found = [chain for one in interfaces for chain in chains(one) if "micro_batch_size" in choose(chain, variables)]
    alone = [chain[-1][1] for chain in found if chain[-1][1].commands]
    found = [chain for chain in found if not any(interface in alone for _, interface in chain[:-1])]
    training = [chain for chain in found if is_of_training(chain)]
    if training and len(found) > 1:
        return training
    return found


def is_of_training(chain: Chain) -> bool:
    """Return whether a command on the way is called as a training is."""
    return OF_TRAINING.search(" ".join(word for word, _ in chain).lower()) is not None


def make_call(chain: Chain, variables: Sequence[Parameter] = (), *, config: Parameter | None = None) -> Call:
    """Return a call with a placeholder at each parameter that takes one, and a word at each that must have one."""
    call = Call(chosen=choose(chain, variables))
    call.chosen.update({"config": config} if config is not None else {})
    values = {one: fill(placeholder, one.name, one.default) for placeholder, one in call.chosen.items()}
    if "output_dir" in call.chosen:
        call.further = [one for one in find_written_folders(chain) if one not in values]
        values.update(dict.fromkeys(call.further, "{output_dir}"))
    for word, interface in chain:
        call.words += [word] if word else []
        for parameter in _given(interface, values):
            value = values.get(parameter)
            if value is None and parameter.default is not None:
                value = str(parameter.default)
            if value is None:
                value = parameter.stand_in
                call.missing.append(parameter)
            call.words += parameter.words(value)
        call.doubtful += [one for one in interface.parameters if one not in values and _is_doubtful(one)]
    call.variables = {one.name: value for one, value in values.items() if one.is_variable}
    return call


def _is_doubtful(parameter: Parameter) -> bool:
    name = parameter.name.lower().replace("_", " ").replace("-", " ")
    is_other = any(pattern.search(name) for pattern in (_OF_LATER, OF_EVALUATION))
    return parameter.is_unset and not is_other and _OF_INPUT.search(name) is not None


def _given(interface: Interface, values: dict[Parameter, str]) -> list[Parameter]:
    """Return the parameters that a call must name: positional ones first, up to the last that needs a value."""
    needs = [
        (parameter.is_required and spell(parameter.name) != _OF_LAUNCHER) or parameter in values
        for parameter in interface.parameters
    ]
    positional = [(one, need) for one, need in zip(interface.parameters, needs, strict=True) if one.is_positional]
    last = max((index for index, (_, need) in enumerate(positional) if need), default=-1)
    named = [one for one, need in zip(interface.parameters, needs, strict=True) if need and not one.is_positional]
    return [one for one, _ in positional[: last + 1]] + named
