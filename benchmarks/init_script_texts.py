"""Tiny training scripts in the styles in which people write them; each trains by `fit` of the module `common`."""

# ruff: noqa: E501  # scripts as people write them
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

COMMON = '''\
"""The training that all scripts share."""
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset


def fit(batch_size, folder="out", accumulation=1, steps=10**6):
    Path(folder).mkdir(parents=True, exist_ok=True)
    data = TensorDataset(torch.randn(2048, 16), torch.randint(0, 4, (2048,)))
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    done = 0
    while done < steps:
        for index, (inputs, classes) in enumerate(DataLoader(data, batch_size=batch_size, shuffle=True), 1):
            (torch.nn.functional.cross_entropy(model(inputs), classes) / accumulation).backward()
            if index % accumulation == 0:
                optimizer.step()
                optimizer.zero_grad()
                done += 1
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """A script of one style.

    Attributes:
        text: Of the script, which is `train.py`.
        words: Behind the name of the script in the right command; for packages that are not installed.
        values: What its author writes for words in capitals.
        command: The command that its author takes, where an error lists several.
        files: Further files by name.
    """

    text: str
    words: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    files: Mapping[str, str] = field(default_factory=dict)


M, O, A = "{micro_batch_size}", "{output_dir}", "{accumulation}"  # noqa: E741  # short: they stand in every script
CONFIG_MODULE = "from dataclasses import dataclass\n\n\n@dataclass\nclass TrainConfig:\n    epochs: int = 3\n    batch_size: int = 24\n    lr: float = 1e-3\n"

SCRIPTS: dict[str, list[Script]] = {
    "argparse": [
        Script(
            text="""\
import argparse
from common import fit

def main():
    parser = argparse.ArgumentParser(description="a training")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--batch-size", type=int, default=64, metavar="N", help="input batch size for training")
    parser.add_argument("--test-batch-size", type=int, default=1000, metavar="N")
    parser.add_argument("--no-cuda", action="store_true", default=False)
    parser.add_argument("--save-model", action="store_true", default=False)
    args = parser.parse_args()
    fit(args.batch_size)

if __name__ == "__main__":
    main()
"""
        ),
        Script(
            text="""\
from argparse import ArgumentParser, ArgumentDefaultsHelpFormatter
from common import fit

def get_args():
    p = ArgumentParser(formatter_class=ArgumentDefaultsHelpFormatter)
    g = p.add_argument_group("optimization")
    g.add_argument("-b", "--bs", dest="batch", type=int, default=32)
    g.add_argument("--accum-iter", type=int, default=1)
    io = p.add_argument_group("files")
    io.add_argument("-o", "--outdir", default="./runs")
    io.add_argument("--resume", default=None)
    return p.parse_args()

a = get_args()
fit(a.batch, a.outdir, a.accum_iter)
"""
        ),
        Script(
            text="""\
import argparse
from common import fit
opt = argparse.ArgumentParser()
opt.add_argument("--batchSize", type=int, default=64, help="input batch size")
opt.add_argument("--niter", type=int, default=25)
opt.add_argument("--outf", default=".", help="folder to output images and model checkpoints")
opt = opt.parse_args()
fit(opt.batchSize, opt.outf)
"""
        ),
        Script(
            text="""\
import argparse
from common import fit

class Options:
    def __init__(self):
        self.parser = argparse.ArgumentParser()
        self.initialize()

    def initialize(self):
        self.parser.add_argument("--per_gpu_train_batch_size", default=8, type=int)
        self.parser.add_argument("--per_gpu_eval_batch_size", default=8, type=int)
        self.parser.add_argument("--gradient_accumulation_steps", type=int, default=2)
        self.parser.add_argument("--output_dir", default="out", type=str)

    def parse(self):
        return self.parser.parse_args()

if __name__ == "__main__":
    o = Options().parse()
    fit(o.per_gpu_train_batch_size, o.output_dir, o.gradient_accumulation_steps)
"""
        ),
    ],
    "required arguments": [
        Script(
            text="""\
import argparse
from common import fit
p = argparse.ArgumentParser()
p.add_argument("data")
p.add_argument("--batch_size", type=int, required=True)
p.add_argument("--output_dir", required=True)
p.add_argument("--num-steps", type=int, required=True)
a = p.parse_args()
assert a.data == "folder", a.data
fit(a.batch_size, a.output_dir, steps=a.num_steps)
""",
            values={"DATA": "folder", "NUM_STEPS": "1000000"},
        ),
        Script(
            text="""\
import click
from common import fit

@click.command()
@click.argument("dataset", type=click.Choice(["cifar", "mnist"]))
@click.option("--model", required=True)
@click.option("--batch-size", "-b", default=16, show_default=True)
@click.option("--workdir", type=click.Path(), required=True)
def main(dataset, model, batch_size, workdir):
    fit(batch_size, workdir)

if __name__ == "__main__":
    main()
""",
            values={"DATASET": "mnist", "MODEL": "mlp"},
        ),
        Script(
            text="""\
import typer
from typing_extensions import Annotated
from common import fit

def main(
    corpus: str,
    tokenizer: Annotated[str, typer.Option(help="its name")],
    batch_size: Annotated[int, typer.Option("--batch-size", "-b")] = 8,
    save_dir: Annotated[str, typer.Option()] = "out",
):
    fit(batch_size, save_dir)

if __name__ == "__main__":
    typer.run(main)
""",
            values={"CORPUS": "texts", "TOKENIZER": "bpe"},
        ),
        Script(
            text="""\
import argparse
from common import fit
parser = argparse.ArgumentParser()
required = parser.add_argument_group("required")
required.add_argument("--train-file", required=True)
required.add_argument("--task", choices=("ner", "pos"), required=True)
parser.add_argument("--train-batch-size", type=int, default=16)
parser.add_argument("--seed", type=int, required=True, default=1)
args = parser.parse_args()
fit(args.train_batch_size)
""",
            values={"TRAIN_FILE": "train.csv", "TASK": "ner"},
        ),
    ],
    "subcommands": [
        Script(
            text="""\
import argparse
from common import fit
p = argparse.ArgumentParser()
p.add_argument("--seed", type=int, default=0)
s = p.add_subparsers(dest="cmd", required=True)
t = s.add_parser("train")
t.add_argument("--batch-size", type=int, default=8)
t.add_argument("--out", default="o")
e = s.add_parser("eval")
e.add_argument("--batch-size", type=int, default=8)
a = p.parse_args()
if a.cmd == "train":
    fit(a.batch_size, a.out)
"""
        ),
        Script(
            text="""\
import click
from common import fit

@click.group()
@click.option("--output-dir", default="results")
@click.pass_context
def cli(ctx, output_dir):
    ctx.obj = output_dir

@cli.command()
@click.argument("checkpoint")
@click.option("--batch-size", default=32)
def evaluate(checkpoint, batch_size): ...

@cli.command("fit")
@click.option("--batch-size", default=32)
@click.pass_obj
def run_fit(output_dir, batch_size):
    fit(batch_size, output_dir)

if __name__ == "__main__":
    cli()
"""
        ),
        Script(
            text="""\
import argparse
from common import fit

def train(args):
    fit(args.mbs, args.ckpt_dir)

def export(args): ...

def common_arguments():
    parent = argparse.ArgumentParser(add_help=False)
    parent.add_argument("--ckpt-dir", default="ckpt")
    return parent

def main():
    parser = argparse.ArgumentParser(prog="tool")
    commands = parser.add_subparsers()
    p = commands.add_parser("pretrain", parents=[common_arguments()])
    p.add_argument("--mbs", type=int, default=4)
    p.set_defaults(func=train)
    p = commands.add_parser("export", parents=[common_arguments()])
    p.add_argument("--format", required=True)
    p.set_defaults(func=export)
    args = parser.parse_args()
    args.func(args)

if __name__ == "__main__":
    main()
"""
        ),
        Script(
            text="""\
import typer
from common import fit
app = typer.Typer()
gan = typer.Typer()
app.add_typer(gan, name="gan")

@gan.command()
def small(batch_size: int = 16, out_dir: str = "small"):
    fit(batch_size, out_dir)

@gan.command()
def large(batch_size: int = 16, out_dir: str = "large"):
    fit(batch_size, out_dir)

if __name__ == "__main__":
    app()
""",
            command="small",
        ),
    ],
    "a parser in another module": [
        Script(
            text="from common import fit\nfrom options import parse_args\n\nargs = parse_args()\nfit(args.batch_size, args.save_dir)\n",
            files={
                "options.py": "import argparse\n\n\ndef parse_args():\n    parser = argparse.ArgumentParser()\n"
                "    parser.add_argument('--batch_size', type=int, default=16)\n"
                "    parser.add_argument('--save_dir', default='out')\n    return parser.parse_args()\n"
            },
        ),
        Script(
            text="""\
import argparse
from common import fit
from utils import add_model_args, config as cfg

parser = argparse.ArgumentParser()
add_model_args(parser)
cfg.add_training_args(parser)
args = parser.parse_args()
fit(args.batch_size, args.log_dir)
""",
            files={
                "utils/__init__.py": "from .model import add_model_args\n",
                "utils/model.py": "def add_model_args(parser):\n    parser.add_argument('--width', type=int, default=4)\n",
                "utils/config.py": "def add_training_args(parser):\n    group = parser.add_argument_group('training')\n"
                "    group.add_argument('--batch-size', type=int, default=16)\n"
                "    group.add_argument('--log-dir', default='logs')\n",
            },
        ),
        Script(
            text="""\
from common import fit
from tools.evaluate import score
from settings.train_options import TrainOptions

if __name__ == "__main__":
    opt = TrainOptions().parse()
    fit(opt.batch_size, opt.checkpoints_dir)
""",
            files={
                "tools/__init__.py": "",
                "tools/evaluate.py": "import argparse\n\n\ndef score(): ...\n\n\nif __name__ == '__main__':\n"
                "    p = argparse.ArgumentParser()\n    p.add_argument('--weights', required=True)\n    p.parse_args()\n",
                "settings/__init__.py": "",
                "settings/base_options.py": "import argparse\n\n\nclass BaseOptions:\n    def initialize(self, parser):\n"
                "        parser.add_argument('--name', default='experiment')\n"
                "        parser.add_argument('--checkpoints_dir', default='./checkpoints')\n        return parser\n\n"
                "    def parse(self):\n        return self.initialize(argparse.ArgumentParser()).parse_args()\n",
                "settings/train_options.py": "from .base_options import BaseOptions\n\n\nclass TrainOptions(BaseOptions):\n"
                "    def initialize(self, parser):\n        parser = BaseOptions.initialize(self, parser)\n"
                "        parser.add_argument('--batch_size', type=int, default=1)\n        return parser\n",
            },
        ),
        Script(
            text="""\
import argparse
from common import fit
from defaults import DEFAULTS

parser = argparse.ArgumentParser()
for name, value in DEFAULTS.items():
    parser.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
args = parser.parse_args()
fit(args.batch_size, args.output_dir)
""",
            files={
                "defaults.py": "import os\n\nDEFAULTS = dict(lr=0.1, output_dir=os.path.join('a', 'b'))\n"
                "DEFAULTS['batch' + '_size'] = 16\n"
            },
        ),
    ],
    "click": [
        Script(
            text="""\
import click
from common import fit

@click.command()
@click.option("--epochs", default=10)
@click.option("--batch_size", type=int, default=128)
@click.option("--amp/--no-amp", default=True)
@click.option("--out", "out_dir", default="out")
def train(epochs, batch_size, amp, out_dir):
    fit(batch_size, out_dir)

train()
"""
        ),
        Script(
            text="""\
from click import command, option
from common import fit

@command(context_settings={"show_default": True})
@option("-b", "--batch", help="batch of a GPU", metavar="INT", type=int, default=4)
@option("--outdir", help="where to save", metavar="DIR", required=True)
@option("--dry", is_flag=True)
def main(**kwargs):
    fit(kwargs["batch"], kwargs["outdir"])

if __name__ == "__main__":
    main()
"""
        ),
        Script(
            text="""\
import click
from common import fit

def io_options(function):
    function = click.option("--save-dir", default="saved")(function)
    return click.option("--quiet", is_flag=True)(function)

@click.group()
def main(): ...

@click.command()
@io_options
@click.option("--micro-batch-size", default=2)
@click.option("--grad-accum", default=4)
def finetune(save_dir, quiet, micro_batch_size, grad_accum):
    fit(micro_batch_size, save_dir, grad_accum)

main.add_command(finetune)

if __name__ == "__main__":
    main()
"""
        ),
        Script(
            text="""\
import click
from common import fit

@click.command()
@click.argument("config", default="base")
@click.argument("batch_size", type=int, default=16)
@click.option("--name", prompt="your name")
def main(config, batch_size, name):
    fit(batch_size, name)

if __name__ == "__main__":
    main()
""",
            values={"NAME": "me"},
        ),
    ],
    "typer": [
        Script(
            text="""\
import typer
from common import fit
app = typer.Typer()

@app.command()
def main(batch_size: int = 16, output_dir: str = "out", lr: float = 1e-3, verbose: bool = False):
    fit(batch_size, output_dir)

if __name__ == "__main__":
    app()
"""
        ),
        Script(
            text="""\
from pathlib import Path
from typing import Optional
import typer
from common import fit
app = typer.Typer(add_completion=False)

@app.callback()
def setup(seed: int = 0): ...

@app.command("train")
def run_training(
    train_batch_size: int = typer.Option(16, "--train-batch-size", "-b", min=1),
    eval_batch_size: int = typer.Option(16),
    out: Path = typer.Option(Path("out"), help="folder"),
    limit: Optional[int] = None,
):
    fit(train_batch_size, out)

if __name__ == "__main__":
    app()
"""
        ),
        Script(
            text="""\
import typer
from common import fit

def train(grad_accumulation_steps: int = 2, bs: int = 8, run_dir: str = "runs"):
    fit(bs, run_dir, grad_accumulation_steps)

if __name__ == "__main__":
    typer.run(train)
"""
        ),
    ],
    "HfArgumentParser": [
        Script(
            text="""\
from dataclasses import dataclass
from transformers import HfArgumentParser
from common import fit

@dataclass
class Args:
    train_batch_size: int = 16
    output_dir: str = "out"
    grad_accum_steps: int = 2

if __name__ == "__main__":
    (a,) = HfArgumentParser(Args).parse_args_into_dataclasses()
    fit(a.train_batch_size, a.output_dir, a.grad_accum_steps)
"""
        ),
        Script(
            text="""\
from dataclasses import dataclass, field
from typing import Optional
from transformers import HfArgumentParser, TrainingArguments
from common import fit

@dataclass
class DataArguments:
    dataset: str = field(metadata={"help": "name of the data set"})
    block_size: Optional[int] = field(default=None)

@dataclass
class OwnTrainingArguments(TrainingArguments):
    cache_dir: Optional[str] = field(default=None)

def main():
    parser = HfArgumentParser((DataArguments, OwnTrainingArguments))
    data, training = parser.parse_args_into_dataclasses()
    fit(training.per_device_train_batch_size, training.output_dir, training.gradient_accumulation_steps)

if __name__ == "__main__":
    main()
""",
            values={"DATASET": "wiki"},
        ),
        Script(
            text="""\
import transformers
from arguments import ModelArguments, RunArguments
from common import fit

parser = transformers.HfArgumentParser([ModelArguments, RunArguments])
model, run = parser.parse_args_into_dataclasses()
fit(run.batch_size, run.save_path)
""",
            files={
                "arguments.py": "from dataclasses import dataclass, field\n\n\n@dataclass\nclass ModelArguments:\n"
                "    width: int = field(default=4)\n\n\n@dataclass\nclass BaseArguments:\n    save_path: str = 'saved'\n\n\n"
                "@dataclass\nclass RunArguments(BaseArguments):\n    batch_size: int = field(default=8)\n"
            },
        ),
    ],
    "sys.argv": [
        Script(text="import sys\nfrom common import fit\nfit(int(sys.argv[1]), sys.argv[2])\n"),
        Script(
            text="""\
import sys
from common import fit

lr = float(sys.argv[1])
batch_size = int(sys.argv[2]) if len(sys.argv) > 2 else 16
fit(batch_size)
""",
            values={"LR": "0.1"},
        ),
        Script(
            text="""\
from sys import argv
from common import fit

def main(args):
    fit(int(args[0]), args[1])

if __name__ == "__main__":
    main(argv[1:])
""",
            values={"ARG1": M, "ARG2": O},
        ),
        Script(
            text="""\
import sys
from common import fit

if len(sys.argv) != 4:
    sys.exit("usage: train.py DATA BATCH_SIZE OUT")
_, data, bs, save_dir = sys.argv
fit(int(bs), save_dir)
""",
            values={"DATA": "data"},
        ),
    ],
    "environment": [
        Script(
            text="""\
import os
from common import fit
BATCH_SIZE = int(os.environ.get("BATCH_SIZE", 16))
OUTPUT_DIR = os.environ.get("OUTPUT_DIR", "out")
fit(BATCH_SIZE, OUTPUT_DIR)
"""
        ),
        Script(
            text="""\
from os import environ, getenv
from common import fit
fit(int(environ["TRAIN_BATCH_SIZE"]), getenv("CHECKPOINT_DIR", "ckpt"), int(getenv("GRAD_ACCUM_STEPS", "1")))
"""
        ),
        Script(
            text="""\
from common import fit
from settings import settings
fit(settings.batch_size, settings.out_dir)
""",
            files={
                "settings.py": "import os\nfrom dataclasses import dataclass, field\n\n\n@dataclass\nclass Settings:\n"
                "    batch_size: int = field(default_factory=lambda: int(os.getenv('MODEL_BATCH_SIZE', '8')))\n"
                "    out_dir: str = os.environ.get('OUT_DIR', 'out')\n\n\nsettings = Settings()\n"
            },
        ),
        Script(
            text="""\
import argparse
import os
from common import fit
p = argparse.ArgumentParser()
p.add_argument("--output-dir", default="out")
a = p.parse_args()
fit(int(os.getenv("MBS", default="4")), a.output_dir)
"""
        ),
    ],
    "defaults in the code": [
        Script(
            text="""\
from dataclasses import dataclass
from common import fit

@dataclass
class Config:
    batch_size: int = 16
    epochs: int = 2

cfg = Config()
fit(cfg.batch_size, "out")
"""
        ),
        Script(
            text="""\
\"\"\"A training.\"\"\"
from common import fit

config = {
    "lr": 1e-3,
    "batch_size": 32,  # of one device
    "val_batch_size": 64,
}

if __name__ == "__main__":
    fit(config["batch_size"])
"""
        ),
        Script(
            text="from common import fit\nfrom config import TrainConfig\n\nconfig = TrainConfig()\nfit(config.batch_size)\n",
            files={"config.py": CONFIG_MODULE},
        ),
        Script(
            text="""\
import torch
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(512, 8), torch.randint(0, 2, (512,)))
test_loader = DataLoader(data, batch_size=1000)
train_loader = DataLoader(data,
                          shuffle=True, batch_size=8)
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(1000000):
    for inputs, classes in train_loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), classes).backward()
        optimizer.step()
"""
        ),
    ],
    "configurator": [
        Script(
            text="""\
from common import fit
out_dir = "out"
eval_interval = 2000
gradient_accumulation_steps = 5 * 8
batch_size = 12
config_keys = [k for k, v in globals().items() if not k.startswith("_") and isinstance(v, (int, float, str))]
exec(open("configurator.py").read())
fit(batch_size, out_dir)
""",
            files={
                "configurator.py": "import sys\nfrom ast import literal_eval\nfor arg in sys.argv[1:]:\n"
                "    key, val = arg[2:].split('=')\n    try:\n        globals()[key] = literal_eval(val)\n"
                "    except (SyntaxError, ValueError):\n        globals()[key] = val\n"
            },
        ),
    ],
    "fire": [
        Script(
            text="import fire\nfrom common import fit\n\ndef train(batch_size=16, out_dir='out', lr=1e-3):\n    fit(batch_size, out_dir)\n\nif __name__ == '__main__':\n    fire.Fire(train)\n",
            words=f"--batch_size={M} --out_dir={O}",
        ),
        Script(
            text="""\
from fire import Fire
from common import fit

class Pipeline:
    def __init__(self, output_dir="out"):
        self.output_dir = output_dir

    def train(self, micro_batch_size: int = 4, gradient_accumulation_steps: int = 8):
        fit(micro_batch_size, self.output_dir, gradient_accumulation_steps)

    def evaluate(self, batch_size: int = 4): ...

Fire(Pipeline)
""",
            words=f"--output_dir={O} train --micro_batch_size={M} --gradient_accumulation_steps={A}",
        ),
        Script(
            text="import fire\nfrom common import fit\n\ndef train(base_model, batch_size=8, output_dir='o'):\n    fit(batch_size, output_dir)\n\ndef export(base_model): ...\n\nif __name__ == '__main__':\n    fire.Fire()\n",
            words=f"train --base_model=BASE_MODEL --batch_size={M} --output_dir={O}",
        ),
    ],
    "absl": [
        Script(
            text="""\
from absl import app, flags
from common import fit
FLAGS = flags.FLAGS
flags.DEFINE_integer("batch_size", 32, "samples")
flags.DEFINE_string("workdir", None, "folder")
flags.mark_flag_as_required("workdir")

def main(argv):
    fit(FLAGS.batch_size, FLAGS.workdir)

if __name__ == "__main__":
    app.run(main)
""",
            words=f"--batch_size={M} --workdir={O}",
        ),
        Script(
            text="""\
from absl import app
from absl import flags
from common import fit
_BATCH = flags.DEFINE_integer("train_batch_size", default=8, help="samples", lower_bound=1)
_EVAL = flags.DEFINE_integer("eval_batch_size", 8, "samples")
_DATA = flags.DEFINE_string("data", None, "folder", required=True)
app.run(lambda _: fit(_BATCH.value))
""",
            words=f"--train_batch_size={M} --data=DATA",
        ),
        Script(
            text="from absl import app, flags\nfrom common import fit\nimport hyper\nFLAGS = flags.FLAGS\napp.run(lambda _: fit(FLAGS.batch_size, FLAGS.logdir))\n",
            files={
                "hyper.py": "from absl import flags\nflags.DEFINE_integer('batch_size', 4, 'n')\nflags.DEFINE_string('logdir', 'logs', 'where')\n"
            },
            words=f"--batch_size={M} --logdir={O}",
        ),
    ],
    "tyro": [
        Script(
            text='from dataclasses import dataclass\nimport tyro\nfrom common import fit\n\n@dataclass\nclass Args:\n    batch_size: int = 16\n    """samples"""\n    out_dir: str = \'out\'\n\nif __name__ == \'__main__\':\n    a = tyro.cli(Args)\n    fit(a.batch_size, a.out_dir)\n',
            words=f"--batch-size {M} --out-dir {O}",
        ),
        Script(
            text="""\
import dataclasses
import tyro
from common import fit

@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    lr: float = 1e-3

@dataclasses.dataclass(frozen=True)
class DataConfig:
    path: str
    batch_size: int = 16

@dataclasses.dataclass(frozen=True)
class Config:
    data: DataConfig
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    output_dir: str = "o"

config = tyro.cli(Config)
fit(config.data.batch_size, config.output_dir)
""",
            words=f"--data.path PATH --data.batch-size {M} --output-dir {O}",
        ),
        Script(
            text="import tyro\nfrom common import fit\n\ndef main(dataset: str, mbs: int = 2, save_dir: str = 's') -> None:\n    fit(mbs, save_dir)\n\ntyro.cli(main)\n",
            words=f"--dataset DATASET --mbs {M} --save-dir {O}",
        ),
    ],
    "jsonargparse and LightningCLI": [
        Script(
            text="from jsonargparse import CLI\nfrom common import fit\n\ndef train(data: str, batch_size: int = 16, out_dir: str = 'o'):\n    fit(batch_size, out_dir)\n\nCLI(train)\n",
            words=f"DATA --batch_size {M} --out_dir {O}",
        ),
        Script(
            text="""\
import lightning as L
from lightning.pytorch.cli import LightningCLI
from torch.utils.data import DataLoader

class Data(L.LightningDataModule):
    def __init__(self, root: str = "data", batch_size: int = 32):
        super().__init__()

class Net(L.LightningModule):
    def __init__(self, width: int = 4): ...

def main():
    LightningCLI(Net, Data)

if __name__ == "__main__":
    main()
""",
            words=f"fit --data.batch_size {M} --trainer.accumulate_grad_batches {A} --trainer.default_root_dir {O}",
        ),
        Script(
            text="""\
from pytorch_lightning.cli import LightningCLI
from data import ImageData
from model import Net

class OwnCLI(LightningCLI):
    def add_arguments_to_parser(self, parser):
        parser.link_arguments("data.num_classes", "model.num_classes", apply_on="instantiate")

OwnCLI(model_class=Net, datamodule_class=ImageData, run=False)
""",
            files={
                "data.py": "import pytorch_lightning as pl\nclass ImageData(pl.LightningDataModule):\n"
                "    def __init__(self, folder: str, train_batch_size: int = 8): ...\n",
                "model.py": "import pytorch_lightning as pl\nclass Net(pl.LightningModule):\n    def __init__(self, num_classes: int): ...\n",
            },
            words=f"--data.folder FOLDER --data.train_batch_size {M} --trainer.accumulate_grad_batches {A} "
            f"--trainer.default_root_dir {O}",
        ),
    ],
    "Hydra and OmegaConf": [
        Script(
            text="""\
import hydra
from common import fit

@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg):
    fit(cfg.train.batch_size)

if __name__ == "__main__":
    main()
""",
            files={"conf/config.yaml": "train:\n  batch_size: 32\n  epochs: 3\n"},
            words=f"train.batch_size={M} hydra.run.dir={O}",
        ),
        Script(
            text="""\
from dataclasses import dataclass
import hydra
from hydra.core.config_store import ConfigStore
from common import fit

@dataclass
class Config:
    batch_size: int = 4
    data: str = "d"

ConfigStore.instance().store(name="config", node=Config)

@hydra.main(version_base=None, config_name="config")
def main(cfg: Config) -> None:
    fit(cfg.batch_size)

main()
""",
            words=f"batch_size={M} hydra.run.dir={O}",
        ),
        Script(
            text="from omegaconf import OmegaConf\nfrom common import fit\nbase = OmegaConf.create({'data': {'batch_size': 4}, 'out_dir': 'o'})\ncfg = OmegaConf.merge(base, OmegaConf.from_cli())\nfit(cfg.data.batch_size, cfg.out_dir)\n",
            words=f"data.batch_size={M} out_dir={O}",
        ),
    ],
}
PACKAGES = {  # of the styles that need one
    "fire": ("fire",),
    "absl": ("absl",),
    "tyro": ("tyro",),
    "jsonargparse and LightningCLI": ("jsonargparse", "lightning"),
    "Hydra and OmegaConf": ("hydra", "omegaconf"),
    "click": ("click",),
    "typer": ("typer",),
    "HfArgumentParser": ("transformers",),
}
