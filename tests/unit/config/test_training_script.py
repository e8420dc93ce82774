from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path

import pytest

from bexplore.config import starter
from bexplore.config.training_script.parameters import rank
from bexplore.errors import UserInputError

MBS, OUT, ACC = "{micro_batch_size}", "{output_dir}", "{accumulation}"
TORCHRUN = "torchrun --standalone --nproc-per-node 1"

# Style -> the script, and the words behind its name.
STYLES = {
    "argparse": (
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr', type=float, default=1e-3)\n"
        "p.add_argument('-b', '--batch-size', type=int, default=16)\np.add_argument('--val-batch-size', type=int)\n"
        "p.add_argument('--save-dir')\np.add_argument('--amp', action='store_true')\n",
        f"--batch-size {MBS} --save-dir {OUT}",
    ),
    "argparse, told by the help text": (
        "import argparse\np = argparse.ArgumentParser()\n"
        "p.add_argument('--accum', type=int, default=4, help='raises the effective batch size')\n"
        "p.add_argument('--start', help='checkpoint directory to resume from')\n"
        "p.add_argument('--N_rand', type=int, default=4096, help='batch size (number of random rays per step)')\n"
        "p.add_argument('--basedir', default='./logs/', help='where to store ckpts and logs')\n",
        f"--accum {ACC} --N_rand {MBS} --basedir {OUT}",
    ),
    "argparse, a checkpoint that is read": (
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--batch-size', type=int)\n"
        "p.add_argument('--resume', default='', type=str, help='path to latest checkpoint (default: none)')\n"
        "p.add_argument('--model', help='path to a checkpoint')\n"
        "p.add_argument('--pretrained', help='save path of the pretraining')\n",
        f"--batch-size {MBS}",
    ),
    "argparse, a folder of data that another program wrote": (
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--speakers_per_batch', type=int, default=64)\n"
        "p.add_argument('--clean_data_root', help='Path to the output directory of preprocess.py')\n"
        "p.add_argument('-m', '--models', help='Path to the output directory that will hold the weights')\n",
        f"--speakers_per_batch {MBS} --models {OUT}",
    ),
    "argparse, a folder of projects": (
        "import argparse\nfrom pathlib import Path\np = argparse.ArgumentParser()\n"
        "p.add_argument('--batch-size', type=int, default=16)\n"
        "p.add_argument('--project', default=Path(__file__).parent / 'runs', help='save to project/name')\n"
        "p.add_argument('--name', default='exp', help='save to project/name')\n",
        f"--batch-size {MBS} --project {OUT}",
    ),
    "argparse, a name of results in a folder of the program": (
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--batch_size', type=int, default=192)\n"
        "p.add_argument('--grad_accumulation', type=int, default=0)\n"
        "p.add_argument('--exp_name', help='Where to store logs and models')\n",
        f"--batch_size {MBS} --grad_accumulation {ACC}",
    ),
    "argparse, a name before a help text": (
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--n', type=int, help='the batch size')\n"
        "p.add_argument('--bs', type=int)\np.add_argument('--result_path')\n",
        f"--bs {MBS} --result_path {OUT}",
    ),
    "absl, told by the help text": (
        "from absl import flags\nflags.DEFINE_integer('rays', 64, 'Batch size in rays')\n"
        "flags.DEFINE_string('dir', None, help='Directory to write checkpoints')\n",
        f"--rays={MBS} --dir={OUT}",
    ),
    "argparse, a short option alone": (
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('-b', type=int)\np.add_argument('-outf')\n",
        f"-b {MBS} -outf {OUT}",
    ),
    "argparse, the command that trains": (
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--out', default='runs')\n"
        "s = p.add_subparsers(dest='command', required=True)\nfor_all = argparse.ArgumentParser(add_help=False)\n"
        "for_all.add_argument('--batch-size', type=int)\n"
        "q = s.add_parser('eval', parents=[for_all])\nq = s.add_parser('train', parents=[for_all])\n"
        "q.add_argument('--steps', type=int, required=True, default=5)\n",
        f"--out {OUT} train --batch-size {MBS} --steps 5",
    ),
    "argparse, a parser that is handed on": (
        "import argparse\ndef add(parser):\n    group = parser.add_argument_group('data')\n"
        "    group.add_argument('--batch_size', type=int, default=8)\n"
        "def main():\n    p = argparse.ArgumentParser()\n    s = p.add_subparsers()\n    add(s.add_parser('fit'))\n",
        f"fit --batch_size {MBS}",
    ),
    "argparse, commands of a loop": (
        "import argparse\ns = argparse.ArgumentParser().add_subparsers()\nfor name in ('train', 'eval'):\n"
        "    p = s.add_parser(name)\n    p.add_argument('--bs')\n",
        f"train --bs {MBS}",
    ),
    "argparse, parsers of an object": (
        "import argparse\nclass Options:\n    def __init__(self):\n        self.parser = argparse.ArgumentParser()\n"
        "        self.commands = self.parser.add_subparsers()\n    def add(self):\n"
        "        self.train = self.commands.add_parser('train')\n        self.train.add_argument('--bs')\n",
        f"train --bs {MBS}",
    ),
    "argparse, the method by a name": (
        "import argparse\np = argparse.ArgumentParser()\nadd = p.add_argument\n"
        "add('--batch-size')\nadd('out', nargs='?')\n",
        f"{OUT} --batch-size {MBS}",
    ),
    "argparse, accumulation": (
        "from argparse import ArgumentParser\np = ArgumentParser()\np.add_argument('data', nargs='?', default='d')\n"
        "p.add_argument('--batch-size', type=int, default=16)\np.add_argument('--grad-accum-steps', default=2)\n",
        f"--batch-size {MBS} --grad-accum-steps {ACC}",
    ),
    "click, a group": (
        "import click\n@click.group()\n@click.option('--seed', default=0)\ndef cli(seed): ...\n"
        "@cli.command()\n@click.option('--batch-size', default=16)\n@click.option('--amp/--no-amp')\n"
        "def train_cmd(**rest): ...\n@cli.command('show')\ndef other(): ...\n",
        f"train --batch-size {MBS}",
    ),
    "click, a group that runs alone": (
        "import click\n@click.group(invoke_without_command=True)\n@click.option('--batch-size', default=4)\n"
        "def main(batch_size): ...\n@main.command()\ndef export(): ...\n",
        f"--batch-size {MBS}",
    ),
    "click, shared options and a command added later": (
        "import click\ndef shared(function):\n    return click.option('--out-dir', default='o')(function)\n"
        "@click.group()\ndef cli(): ...\n@click.command()\n@shared\n@click.option('-b', '--batch', type=int)\n"
        "def fit(**rest): ...\ncli.add_command(fit)\n",
        f"fit --out-dir {OUT} --batch {MBS}",
    ),
    "typer, the only command": (
        "import typer\napp = typer.Typer()\n@app.command()\n"
        "def main(batch_size: int = 16, out: str = 'o', fast: bool = False): ...\n",
        f"--batch-size {MBS} --out {OUT}",
    ),
    "typer, several commands and Annotated": (
        "import typer\nfrom typing import Annotated\napp = typer.Typer()\n@app.command()\n"
        "def train(size: Annotated[int, typer.Option('--bs')], out_dir: str = typer.Option('o', '--output')): ...\n"
        "@app.command()\ndef export(): ...\n",
        f"train --bs {MBS} --output {OUT}",
    ),
    "typer.run, Annotated": (
        "import typer\nfrom typing import Annotated\n"
        "def main(batch_size: Annotated[int, typer.Option(help='n')], out: Annotated[str, typer.Argument()] = 'o'):\n"
        "    pass\n"
        "typer.run(main)\n",
        f"{OUT} --batch-size {MBS}",
    ),
    "typer.run": ("import typer\ndef main(batch_size: int = 2): ...\ntyper.run(main)\n", f"--batch-size {MBS}"),
    "fire, a function": (
        "import fire\ndef train(batch_size=16, out_dir='o', **rest): ...\nfire.Fire(train)\n",
        f"--batch_size={MBS} --out_dir={OUT}",
    ),
    "fire, a class": (
        "from fire import Fire\nclass Job:\n    def __init__(self, out_dir='o'): ...\n"
        "    def train(self, batch_size=16): ...\n    def evaluate(self): ...\nFire(Job)\n",
        f"--out_dir={OUT} train --batch_size={MBS}",
    ),
    "fire, a method": (
        "import fire\nclass Job:\n    def train(self, batch_size=16): ...\nfire.Fire(Job().train)\n",
        f"--batch_size={MBS}",
    ),
    "fire, a table": (
        "import fire\ndef train(batch_size=16): ...\ndef test(batch_size=16): ...\n"
        "fire.Fire({'train': train, 'test': test})\n",
        f"train --batch_size={MBS}",
    ),
    "absl": (
        "from absl import flags\nFLAGS = flags.FLAGS\nflags.DEFINE_integer('batch_size', 16, 'samples')\n"
        "flags.DEFINE_string('workdir', None, 'folder')\nflags.mark_flag_as_required('workdir')\n",
        f"--batch_size={MBS} --workdir={OUT}",
    ),
    "tyro, classes in classes": (
        "import tyro\nfrom dataclasses import dataclass, field\n@dataclass\nclass Data:\n    batch_size: int = 16\n"
        "@dataclass\nclass Args:\n    data: Data = field(default_factory=Data)\n    out_dir: str = 'o'\n"
        "def main(args: Args): ...\ntyro.cli(Args)\n",
        f"--data.batch-size {MBS} --out-dir {OUT}",
    ),
    "HfArgumentParser with TrainingArguments": (
        "from dataclasses import dataclass\nfrom transformers import HfArgumentParser, TrainingArguments\n"
        "@dataclass\nclass Model:\n    name: str = 'gpt2'\nHfArgumentParser((Model, TrainingArguments))\n",
        f"--per_device_train_batch_size {MBS} --output_dir {OUT} --gradient_accumulation_steps {ACC}",
    ),
    "HfArgumentParser with a class of one's own": (
        "from dataclasses import dataclass\nimport transformers\n@dataclass\n"
        "class Own(transformers.TrainingArguments):\n    block_size: int = 8\ntransformers.HfArgumentParser(Own)\n",
        f"--per_device_train_batch_size {MBS} --output_dir {OUT} --gradient_accumulation_steps {ACC}",
    ),
    "TrlParser": (
        "from trl import TrlParser, SFTConfig, ModelConfig, ScriptArguments\n"
        "TrlParser((ScriptArguments, SFTConfig, ModelConfig))\n",
        f"--per_device_train_batch_size {MBS} --output_dir {OUT} --gradient_accumulation_steps {ACC}",
    ),
    "tyro, a positional field": (
        "import tyro\nfrom dataclasses import dataclass\n@dataclass\nclass Args:\n"
        "    size: tyro.conf.Positional[int] = 3\n    batch_size: int = 16\ntyro.cli(Args)\n",
        f"--batch-size {MBS}",
    ),
    "tyro, one of several classes": (
        "import tyro\nfrom dataclasses import dataclass\n@dataclass\nclass TrainModel:\n    batch_size: int = 16\n"
        "@dataclass\nclass Show:\n    path: str\ntyro.cli(TrainModel | Show)\n",
        f"train-model --batch-size {MBS}",
    ),
    "docopt": (
        '"""A training.\n\nUsage:\n  train.py [options]\n\nOptions:\n  -b N, --batch-size=N  samples [default: 4]\n'
        '  --out=DIR             folder [default: o]\n"""\nfrom docopt import docopt\ndocopt(__doc__)\n',
        f"--batch-size {MBS} --out {OUT}",
    ),
    "sacred": (
        "from sacred import Experiment\nex = Experiment()\n@ex.config\ndef own():\n    batch_size = 4\n    lr = 0.1\n"
        "@ex.automain\ndef main(batch_size): ...\n",
        f"with batch_size={MBS}",
    ),
    "jsonargparse, a class of required fields": (
        "from jsonargparse import CLI\nfrom dataclasses import dataclass\n@dataclass\nclass C:\n    batch_size: int\n"
        "def train(c: C): ...\nCLI(train)\n",
        f"--c.batch_size {MBS}",
    ),
    "jsonargparse, all of the script": (
        "from jsonargparse import CLI\ndef train(batch_size: int = 16): ...\nif __name__ == '__main__':\n    CLI()\n",
        f"--batch_size {MBS}",
    ),
    "jsonargparse, a class below a key": (
        "from jsonargparse import ArgumentParser\nclass Data:\n    def __init__(self, batch_size: int = 4): ...\n"
        "p = ArgumentParser()\np.add_class_arguments(Data, 'data')\np.add_argument('--out')\n",
        f"--data.batch_size {MBS} --out {OUT}",
    ),
    "jsonargparse": (
        "from jsonargparse import CLI\ndef train(batch_size: int = 16, out_dir: str = 'o'): ...\nCLI(train)\n",
        f"--batch_size {MBS} --out_dir {OUT}",
    ),
    "LightningCLI": (
        "from lightning.pytorch.cli import LightningCLI\nimport lightning.pytorch as pl\n"
        "class Net(pl.LightningModule):\n    def __init__(self, lr: float = 1e-3): ...\n"
        "class Data(pl.LightningDataModule):\n    def __init__(self, batch_size: int = 16): ...\n"
        "LightningCLI(Net, Data)\n",
        f"fit --data.batch_size {MBS} --trainer.accumulate_grad_batches {ACC} --trainer.default_root_dir {OUT}",
    ),
    "LightningCLI without classes": (
        "from lightning.pytorch.cli import LightningCLI\nimport lightning as L\n"
        "class Net(L.LightningModule): ...\nclass Data(L.LightningDataModule):\n"
        "    def __init__(self, batch_size=16): ...\nLightningCLI()\n",
        f"fit --model Net --data Data --data.batch_size {MBS} --trainer.accumulate_grad_batches {ACC} "
        f"--trainer.default_root_dir {OUT}",
    ),
    "sys.argv by names": (
        "import sys\nbatch_size = int(sys.argv[1])\nsave_dir = sys.argv[2] if len(sys.argv) > 2 else 'o'\n",
        f"{MBS} {OUT}",
    ),
    "sys.argv, unpacked": ("import sys\nbs, accum = map(int, sys.argv[1:3])\n", f"{MBS} {ACC}"),
    "sys.argv, a default before the size": (
        "import sys\nargs = sys.argv[1:]\nlr = float(args[0]) if len(args) > 0 else 0.1\nbs = int(args[1])\n",
        f"0.1 {MBS}",
    ),
    "sys.argv, handed to a function": (
        "from sys import argv\ndef main(words):\n    batch_size, out_dir = int(words[0]), words[1]\nmain(argv[1:])\n",
        f"{MBS} {OUT}",
    ),
    "sys.argv, by the option before": (
        "import sys\nb = 4\nif '--bs' in sys.argv:\n    b = int(sys.argv[sys.argv.index('--bs') + 1])\n",
        f"--bs {MBS}",
    ),
    "nanoGPT's configurator": (
        "batch_size = 12\nout_dir = 'out'\ngradient_accumulation_steps = 5 * 8\nexec(open('configurator.py').read())\n",
        f"--batch_size={MBS} --out_dir={OUT}",
    ),
    "OmegaConf": (
        "from omegaconf import OmegaConf\nbase = OmegaConf.create({'data': {'batch_size': 4}, 'out_dir': 'o'})\n"
        "OmegaConf.merge(base, OmegaConf.from_cli())\n",
        f"data.batch_size={MBS} out_dir={OUT}",
    ),
    "Hydra, a structured configuration": (
        "import hydra\nfrom hydra.core.config_store import ConfigStore\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Config:\n    batch_size: int = 4\nConfigStore.instance().store(name='c', node=Config)\n"
        "@hydra.main(version_base=None, config_name='c')\ndef main(c): ...\n",
        f"batch_size={MBS} hydra.run.dir={OUT}",
    ),
    "simple_parsing": (
        "import simple_parsing\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Options:\n    batch_size: int = 4\n"
        "p = simple_parsing.ArgumentParser()\np.add_arguments(Options, dest='options')\n",
        f"--batch_size {MBS}",
    ),
    "typed-argument-parser": (
        "from tap import Tap\nclass Args(Tap):\n    batch_size: int = 4\n    amp: bool = False\nArgs().parse_args()\n",
        f"--batch_size {MBS}",
    ),
    "draccus": (
        "import draccus\nfrom dataclasses import dataclass\n@dataclass\nclass Config:\n    batch_size: int = 4\n"
        "@draccus.wrap()\ndef main(config: Config): ...\n",
        f"--batch_size {MBS}",
    ),
}


def words_of(path) -> str:
    """The words behind the name of the script, of the file that is made of it."""
    text = starter.from_script(path).text
    (line,) = [line for line in text.splitlines() if line.startswith("  command: ")]
    return line.partition(path.name)[2].strip().rstrip("'")


@pytest.mark.parametrize("style", STYLES)
def test_a_script_is_called_as_its_style_has_it(tmp_path, style):
    path = tmp_path / "train.py"
    path.write_text(STYLES[style][0])

    assert words_of(path) == STYLES[style][1]


REFUSED = {
    "values that only the user knows": (
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('data')\n"
        "p.add_argument('--task', choices=['a', 'b'], required=True)\np.add_argument('--batch-size', required=True)\n",
        "needs values that only you know: data, --task (a, b)",
        "bexplore init -- python train.py DATA --task TASK --batch-size {micro_batch_size}",
    ),
    "several commands that train": (
        "import fire\ndef train_a(batch_size=1): ...\ndef train_b(batch_size=1): ...\nfire.Fire()\n",
        "several commands with a micro-batch size: train_a, train_b",
        "bexplore init -- python train.py train_b --batch_size={micro_batch_size}",
    ),
    "LightningCLI with classes of another package": (
        "from lightning.pytorch.cli import LightningCLI\nfrom elsewhere import Net, Data\nLightningCLI(Net, Data)\n",
        "takes a batch size",
        "train.py fit --data.batch_size {micro_batch_size} --trainer.default_root_dir {output_dir}",
    ),
    "words without a name": (
        "import sys\nrun(int(sys.argv[1]), sys.argv[2])\n",
        "takes words by their place",
        "bexplore init -- python train.py ARG1 ARG2",
    ),
    "a file of settings": (
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--config', default='base.yaml')\n"
        "p.add_argument('--name', required=True)\np.add_argument('--out-dir')\n",
        "--config names a file that may hold it",
        "bexplore explore base.yaml -- python train.py --config {config} --name NAME --out-dir {output_dir}",
    ),
    "a file of settings under another name": (
        "import argparse\np = argparse.ArgumentParser()\n"
        "p.add_argument('--config', '-c', dest='filename', default='base.yaml')\n",
        "--config names a file that may hold it",
        "bexplore explore base.yaml --writes-are-fine -- python train.py --config {config}",
    ),
    "a number that is divided among devices": (
        "import os\nloader = DataLoader(a, batch_size=128 // args.n_gpu, sampler=s)\n",
        "train.py:2: batch_size=128 is fixed",
        'batch_size=int(os.environ.get("MICRO_BATCH_SIZE", 128)) // args.n_gpu, sampler=s)\nthen',
    ),
    "a variable beside values that only the user knows": (
        "import argparse, os\np = argparse.ArgumentParser()\np.add_argument('data')\n"
        "loader = DataLoader(a, batch_size=int(os.environ['BATCH_SIZE']))\n",
        "needs values that only you know: data",
        "bexplore explore --env BATCH_SIZE={micro_batch_size} --writes-are-fine -- python train.py DATA",
    ),
    "a help text of another batch": (
        "import argparse\np = argparse.ArgumentParser()\n"
        "p.add_argument('--n', type=int, help='total batch size of all devices')\n",
        "no option of train.py is a micro-batch size",
        "--run-help",
    ),
    "no option of that name": (
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr', type=float)\n",
        "no option of train.py is a micro-batch size: it takes --lr",
        "bexplore init --run-help train.py",
    ),
    "options that are made while it runs": (
        "import argparse\np = argparse.ArgumentParser()\nbatch_size = 4\n"
        "for name in dir(p):\n    p.add_argument('--' + name)\n",
        "train.py makes options while it runs",
        "bexplore init --run-help train.py",
    ),
    "a class's default": (
        "from dataclasses import dataclass\n@dataclass\nclass C:\n    batch_size: int = 16  # samples\n",
        "train.py:4: batch_size=16 is fixed",
        '\n    batch_size: int = int(os.environ.get("MICRO_BATCH_SIZE", 16))  # samples\n',
    ),
    "a number of a script with commands and required words": (
        "import fire, os\ndef train(data, out_dir='o'):\n    load(batch_size=16)\ndef show(): ...\nfire.Fire()\n",
        "train.py:3: batch_size=16 is fixed",
        "-- python train.py train --data=DATA --out_dir={output_dir}",
    ),
    "a size that the program computes": (
        "import tyro\nfrom dataclasses import dataclass\n@dataclass\nclass Args:\n"
        "    batch_size: int = 0\ntyro.cli(Args)\n",
        "no option of train.py is a micro-batch size",
        "--run-help",
    ),
    "the evaluation's loader alone": (
        "def eval_split(split):\n    return DataLoader(split, batch_size=100)\n",
        "no option of train.py",
        "--run-help",
    ),
    "a field with a default": (
        "import os\nfrom dataclasses import dataclass, field\n@dataclass\nclass C:\n"
        "    batch_size: int = field(default=16, metadata={})\n",
        "train.py:5: batch_size=16 is fixed",
        'batch_size: int = field(default=int(os.environ.get("MICRO_BATCH_SIZE", 16)), metadata={})\nthen',
    ),
    "a number that depends on the device": (
        "import os, torch\nBATCH = 16 if torch.cuda.is_available() else 4\n",
        "train.py:2: BATCH=16 is fixed",
        'BATCH = int(os.environ.get("MICRO_BATCH_SIZE", 16 if torch.cuda.is_available() else 4))\nthen',
    ),
    "a dictionary, beside an option for the output": (
        "import argparse, os\np = argparse.ArgumentParser()\np.add_argument('--save-dir')\n"
        "C = {'val_batch_size': 1, 'batch_size': 16}\n",
        "train.py:4: batch_size=16 is fixed",
        "bexplore explore --env MICRO_BATCH_SIZE={micro_batch_size} -- python train.py --save-dir {output_dir}",
    ),
    "the loader of the training, by its place": (
        "from torch.utils.data import DataLoader\nval_loader = DataLoader(a, batch_size=4)\n"
        "B = 8\nloader = DataLoader(a, B)\n",
        "train.py:3: batch_size=8 is fixed",
        'B = int(os.environ.get("MICRO_BATCH_SIZE", 8))',
    ),
    "the loader of the training, by its name": (
        "from torch.utils.data import DataLoader\nfirst_look = DataLoader(a, batch_size=10)\n"
        "train_loader = DataLoader(a, batch_size=4)\nval_loader = DataLoader(b, batch_size=1)\nsw_batch_size = 6\n",
        "train.py:3: batch_size=4 is fixed",
        'train_loader = DataLoader(a, batch_size=int(os.environ.get("MICRO_BATCH_SIZE", 4)))',
    ),
    "a batch of the training before one of a part": (
        "from torch.utils.data import DataLoader\nteacher_batch_size = 6\nloader = DataLoader(a, batch_size=4)\n",
        "train.py:3: batch_size=4 is fixed",
        'loader = DataLoader(a, batch_size=int(os.environ.get("MICRO_BATCH_SIZE", 4)))',
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_an_error_has_the_complete_line_to_type_or_to_write(tmp_path, monkeypatch, why):
    script, message, hint = REFUSED[why]
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(script)

    with pytest.raises(UserInputError) as raised:
        starter.from_script(Path("train.py"))

    assert message in raised.value.message
    assert hint in raised.value.hint


def test_a_folder_of_settings_is_explored_by_its_file_with_the_size(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("settings").mkdir()
    Path("settings/data.yaml").write_text("path: here\n")
    Path("settings/model.yaml").write_text("one:\n  batch_size: 4\n")
    Path("train.py").write_text(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--config', default='./settings/')\n"
    )

    with pytest.raises(UserInputError) as raised:
        starter.from_script(Path("train.py"))

    assert "--config names a folder, of which a file may hold it" in raised.value.message
    assert "write explore as the size in settings/model.yaml, then type" in raised.value.hint
    assert (
        "bexplore explore settings/model.yaml --writes-are-fine -- python train.py --config {config_dir}"
        in raised.value.hint
    )


def test_options_without_a_default_that_few_trainings_do_without_are_named(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--batch-size', type=int, default=8)\n"
        "p.add_argument('--data-dir')\np.add_argument('--arch', default=None)\np.add_argument('--out', default=None)\n"
        "p.add_argument('--task', default='a')\np.add_argument('--model-weights')\np.add_argument('--val-data')\n"
        "p.add_argument('--train-num-samples', type=int)\np.add_argument('--notes')\n"
    )

    notes = starter.from_script(script).notes

    told = [note for note in notes if note.startswith("left out")]
    words = "left out, as they have no default: --data-dir, --arch; add what your training needs to the command"
    assert told == [words]


def test_a_variable_of_the_environment_is_written_into_the_file(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(
        "import os\nb = os.environ['BATCH_SIZE']\no = os.getenv('RUN_DIR', 'x')\nd = os.environ['DATA_X']\n"
    )

    made = starter.from_script(path)

    assert '  env:\n    BATCH_SIZE: "{micro_batch_size}"\n    RUN_DIR: "{output_dir}"\n' in made.text
    assert "DATA_X is to be set in the environment, as for a training" in made.notes


@pytest.mark.parametrize(
    "script",
    [
        "import os\nenv = os.environ\nn = int(env.get('BATCH_SIZE', 4))\n",
        "import os\ndef number(name, other):\n    return int(os.getenv(name, other))\nn = number('BATCH_SIZE', 4)\n",
        "from os import environ as e\nNAME = 'BATCH_SIZE'\nn = int(e[NAME])\n",
        "from pydantic_settings import BaseSettings\nclass S(BaseSettings):\n    batch_size: int = 4\n",
    ],
)
def test_a_variable_is_found_however_it_is_read(tmp_path, script):
    path = tmp_path / "train.py"
    path.write_text(script)

    assert '    BATCH_SIZE: "{micro_batch_size}"\n' in starter.from_script(path).text


def test_a_variable_is_known_by_what_its_value_is_given_to(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(
        "import os\nfrom composer import Trainer\nb = os.environ['SEED']\nbatch_size = 256\n"
        "Trainer(device_train_microbatch_size=int(os.environ['MB']), save_folder=os.environ.get('DIR', 'x'))\n"
    )

    made = starter.from_script(path)

    assert '  env:\n    MB: "{micro_batch_size}"\n    DIR: "{output_dir}"\n' in made.text
    assert "SEED is to be set in the environment, as for a training" in made.notes
    assert not any("MB is to be set" in note for note in made.notes)


def test_a_variable_that_is_read_only_where_it_is_set_is_not_asked_for(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(
        "import os, sys\nbatch_size = sys.argv[1]\nos.environ['RANK'], os.environ['SLURM_PROCID']\n"
        "if 'OWN' in os.environ:\n    own = os.environ['OWN']\n"
    )

    assert not [note for note in starter.from_script(path).notes if "environment" in note]


def test_a_parser_without_help_is_the_program_s_own_unless_it_is_a_parent(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(
        "import argparse\nfrom pathlib import Path\nPath('o').mkdir(parents=True)\n"
        "def own():\n    p = argparse.ArgumentParser(add_help=False)\n    p.add_argument('--bs')\n    return p\n"
        "argparse.ArgumentParser(parents=[own()]).add_argument('--output-dir')\n"
    )

    assert words_of(path) == f"--bs {MBS} --output-dir {OUT}"


def test_a_script_that_needs_the_current_folder_starts_as_a_module(tmp_path, monkeypatch):
    (tmp_path / "scripts").mkdir()
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "model.py").touch()
    (tmp_path / "scripts" / "train.py").write_text("import own\nimport sys\nbatch_size = sys.argv[1]\n")
    monkeypatch.chdir(tmp_path)

    assert f"command: python -m scripts.train {MBS}\n" in starter.from_script(Path("scripts/train.py")).text


@pytest.mark.parametrize(
    ("reads", "launcher"),
    [
        ("rank = int(os.environ['LOCAL_RANK'])", TORCHRUN),
        ("rank, size = os.environ['RANK'], os.environ['WORLD_SIZE']", TORCHRUN),
        ("if 'RANK' in os.environ:\n    rank, local = os.environ['RANK'], os.environ['LOCAL_RANK']", "python"),
        ("rank = int(os.environ.get('LOCAL_RANK'))", TORCHRUN),
        ("import deepspeed\ndeepspeed.init_distributed()", TORCHRUN),
        ("import deepspeed\nrank = int(os.getenv('LOCAL_RANK', '0'))\ndeepspeed.initialize(None)", TORCHRUN),
        ("import torch.distributed as dist\ndef setup():\n    dist.init_process_group('nccl')\nsetup()", TORCHRUN),
        ("from torch.distributed.device_mesh import init_device_mesh\ninit_device_mesh('cuda', (1,))", TORCHRUN),
        ("import torch.distributed as dist\ndist.init_process_group('nccl', rank=0)", "python"),
        ("import torch\nif given:\n    torch.distributed.init_process_group('nccl')", "python"),
        (
            "import torch\ndef setup(given):\n    if not given:\n        return\n"
            "    torch.distributed.init_process_group('nccl')\nsetup(None)",
            "python",
        ),
        ("import torch\ntorch.distributed.init_process_group('gloo', 'tcp://localhost:29500')", "python"),
        ("import torch\nos.environ['RANK'] = '0'\ntorch.distributed.init_process_group('gloo')", "python"),
        ("def setup():\n    return int(os.environ['RANK'])\nif given:\n    setup()", "python"),
        ("if slurm:\n    r = os.environ['SLURM_PROCID']\nelse:\n    r = os.environ['RANK']", TORCHRUN),
        ("if spawn:\n    r = 0\nelse:\n    r = os.environ['RANK']", "python"),
        ("class Own:\n    def setup(self):\n        self.rank = int(os.environ['RANK'])\nOwn().setup()", TORCHRUN),
        ("rank = int(os.environ.get('LOCAL_RANK', 0))", "python"),
        ("rank = 0", "python"),
    ],
)
def test_a_script_that_needs_the_variables_of_ranks_is_started_by_torchrun(tmp_path, reads, launcher):
    (tmp_path / "train.py").write_text(
        f"import argparse, os\n{reads}\np = argparse.ArgumentParser()\np.add_argument('--batch-size', type=int)\n"
        "p.add_argument('--local_rank', type=int, required=True)\n"
    )

    text = starter.from_script(tmp_path / "train.py").text

    assert f"command: {launcher} {tmp_path / 'train.py'} --batch-size {MBS}\n" in text


def test_a_file_of_settings_that_a_script_names_itself_gets_the_edit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("base.yaml").write_text("train:\n  batch_size: 4\n")
    Path("train.py").write_text("import yaml\nwith open('base.yaml') as f:\n    c = yaml.safe_load(f)\n")

    with pytest.raises(UserInputError, match=r"train\.py:2: the name of base\.yaml") as raised:
        starter.from_script(Path("train.py"))

    assert "\nwith open(os.environ.get(\"CONFIG\", 'base.yaml')) as f:\n" in raised.value.hint
    line = "bexplore explore base.yaml --env CONFIG={config} --writes-are-fine -- python train.py"
    assert raised.value.hint.endswith(line)


def test_options_of_other_modules_are_read_where_the_script_uses_them(tmp_path):
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "__init__.py").write_text("from .options import parse\n")
    (tmp_path / "tools" / "options.py").write_text(
        "import argparse\ndef parse():\n    p = argparse.ArgumentParser()\n    p.add_argument('--bs', type=int)\n"
        "def other():\n    p = argparse.ArgumentParser()\n    p.add_argument('--weights', required=True)\n"
        "if __name__ == '__main__':\n    q = argparse.ArgumentParser()\n    q.add_argument('file')\n"
    )
    (tmp_path / "train.py").write_text("from tools import parse\nparse()\n")

    assert words_of(tmp_path / "train.py") == f"--bs {MBS}"


@pytest.mark.parametrize("folder", [".", "src"])
@pytest.mark.parametrize("typed", ["", "tools", "elsewhere"])
def test_options_are_read_from_the_package_of_the_project(tmp_path, monkeypatch, folder, typed):
    package = tmp_path / "project" / folder / "own"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "options.py").write_text("import argparse\np = argparse.ArgumentParser()\np.add_argument('--bs')\n")
    (tmp_path / "project" / "pyproject.toml").touch()
    script = tmp_path / "project" / "tools" / "train.py"
    script.parent.mkdir()
    script.write_text("from own import options\n")
    current = tmp_path / "elsewhere" if typed == "elsewhere" else tmp_path / "project" / typed
    current.mkdir(exist_ok=True)
    monkeypatch.chdir(current)

    text = starter.from_script(Path(os.path.relpath(script))).text
    assert re.search(r"command: .*train(\.py)? --bs \{micro_batch_size\}\n", text)


def test_a_script_that_imports_from_its_package_starts_as_a_module(tmp_path, monkeypatch):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "__init__.py").touch()
    (tmp_path / "own" / "train.py").write_text("from . import model\nimport os\nos.environ['BATCH_SIZE']\n")
    monkeypatch.chdir(tmp_path)

    assert "command: python -m own.train\n" in starter.from_script(Path("own/train.py")).text


def test_hydra_without_a_list_of_defaults_is_read_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text("data: {batch_size: 4}\n")
    Path("train.py").write_text("import hydra\n@hydra.main(config_path='.', config_name='c')\ndef main(c): ...\n")

    assert words_of(Path("train.py")) == f"data.batch_size={MBS} hydra.run.dir={OUT}"


def test_a_typed_command_gets_what_it_leaves_out_in_its_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(STYLES["argparse, the command that trains"][0])

    text = starter.from_command(["torchrun", "train.py", "train", "--lr", "1"]).text

    assert f"torchrun train.py --out {OUT} train --lr 1 --batch-size {MBS}\n" in text
    with pytest.raises(UserInputError) as raised:
        starter.from_command(["python", "train.py"])
    assert f"bexplore init -- python train.py --out {OUT} train --batch-size {MBS}" in raised.value.hint


HELPS = {
    "argparse": (
        "usage: train.py [-h] --name NAME [--batch-size\n                BATCH_SIZE] [--out OUT] data\n\n"
        "options:\n  -h, --help  show this\n  -b N, --batch-size N\n  --name NAME  a name\n  --out OUT\n",
        f"DATA --batch-size {MBS} --name NAME --out {OUT}",
    ),
    "argparse, short options in the usage": (
        "usage: train.py [-h] -c DATA -v VOCAB [-b BATCH_SIZE] -o OUTPUT_PATH\n\noptions:\n"
        "  -c DATA, --data DATA  a file\n  -v VOCAB, --vocab_path VOCAB\n                        its words\n"
        "  -b BATCH_SIZE, --batch_size BATCH_SIZE\n  -o OUTPUT_PATH, --output_path OUTPUT_PATH\n",
        f"--data DATA --vocab_path VOCAB_PATH --batch_size {MBS} --output_path {OUT}",
    ),
    "argparse, defaults behind a sign": (
        "usage: train.py [-h] [--bs BS] [--out OUT]\n\noptions:\n"
        "  --bs BS    samples (default=256)\n  --out OUT  folder (default = runs)\n",
        f"--bs {MBS} --out {OUT}",
    ),
    "click": (
        "Usage: train.py [OPTIONS] DATA\n\nOptions:\n  --steps INTEGER       [required]\n"
        "  -b, --batch INTEGER   samples  [default: 4]\n  --help                Show this message and exit.\n",
        f"DATA --steps STEPS --batch {MBS}",
    ),
    "typer with rich": (
        " Usage: train.py [OPTIONS]\n\n╭─ Options ─────╮\n│ *  --bs          INTEGER  [required] │\n"
        "│    --output-dir  TEXT     [default: out] │\n╰──────╯\n",
        f"--bs {MBS} --output-dir {OUT}",
    ),
    "absl": (
        "\nUSAGE: train.py [flags]\nflags:\n\ntrain.py:\n"
        "  --batch_size: samples\n    (default: '16')\n    (an integer)\n",
        f"--batch_size {MBS}",
    ),
    "fire": (
        "NAME\n    train.py\n\nSYNOPSIS\n    train.py <flags>\n\nFLAGS\n    -b, --batch_size=BATCH_SIZE\n"
        "        Default: 16\n    -o, --out_dir=OUT_DIR\n        Default: 'out'\n",
        f"--batch_size {MBS} --out_dir {OUT}",
    ),
}


@pytest.mark.parametrize("style", HELPS)
def test_a_help_text_is_read_as_its_library_writes_it(style):
    text, words = HELPS[style]
    try:
        command = starter.from_help(["python", "train.py"], text).text
    except UserInputError as error:
        command = error.hint

    assert f"python train.py {words}\n" in f"{command}\n"


def test_what_a_help_text_shows_without_a_default_is_told_to_be_left_out():
    text = "usage: train.py [-h] [-c CONFIG] [--bs BS]\n\noptions:\n  -c CONFIG, --config CONFIG\n"

    made = starter.from_help(["python", "train.py"], f"{text}    a file (default: None)\n  --bs BS  size\n")

    assert "left out, as they have no default: --config; add what your training needs to the command" in made.notes


@pytest.mark.parametrize("typed", ["-c", "--data", "--data=x"])
def test_a_required_option_that_is_typed_is_not_asked_for(typed):
    text, _ = HELPS["argparse, short options in the usage"]

    with pytest.raises(UserInputError, match=r"needs values that only you know: --vocab_path$"):
        starter.from_help(["python", "train.py", typed, *([] if "=" in typed else ["x"])], text)


def test_a_help_text_with_commands_asks_for_one_of_them():
    text = "usage: train.py [-h] {train,eval} ...\n\npositional arguments:\n  {train,eval}\n"

    with pytest.raises(UserInputError, match="has commands: train, eval") as raised:
        starter.from_help(["python", "train.py"], text)

    assert "bexplore init --run-help -- python train.py train" in raised.value.hint
    assert (
        "train.py train --bs"
        in starter.from_help(
            ["python", "train.py", "train"], "usage: train.py train [-h] [--bs BS]\n\noptions:\n  --bs BS\n"
        ).text
    )


NAMED_WHILE_IT_RUNS = "import argparse\np = argparse.ArgumentParser()\nfor n in names: p.add_argument(n)\n"


def write_notebook(path: Path, *cells: tuple[str, list[str]]) -> Path:
    code = [{"cell_type": "code", "metadata": {"tags": tags}, "source": source} for source, tags in cells]
    path.write_text(json.dumps({"nbformat": 4, "cells": [{"cell_type": "markdown", "source": "# title"}, *code]}))
    return path


def test_a_notebook_becomes_a_command_of_papermill(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write_notebook(Path("a.ipynb"), ("%pip list\nbatch_size = 32\nout_dir = 'o'", ["parameters"]), ("x", []))

    made = starter.from_script(path)

    assert f"papermill a.ipynb {OUT}/a.ipynb -p batch_size {MBS} -p out_dir {OUT}\n" in made.text
    assert made.target == Path("a.explore.yaml")


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (("batch_size = 32", []), 'write "tags": ["parameters"] into the metadata of cell 2'),
        (("bs = 4\nloader = DataLoader(a, bs)", ["parameters"]), "leave bs = 4 alone in the cell"),
        (("bs = 4\nloader = DataLoader(a, bs)", []), "leave bs = 4 alone in it and move the rest into the next cell"),
        (("DataLoader(a, batch_size=4)", []), "in a cell of its own with the tag parameters"),
    ],
)
def test_a_notebook_that_takes_no_size_says_which_cell_to_change(tmp_path, cell, text):
    with pytest.raises(UserInputError) as raised:
        starter.from_script(write_notebook(tmp_path / "a.ipynb", cell))

    assert text in raised.value.hint


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a b.ipynb", json.dumps({"cells": [{"cell_type": "code", "source": "batch_size = 4"}]})),
        ("a b.ipynb", json.dumps({"cells": [{"cell_type": "code", "source": "n = 4"}]})),
        ("a b.py", "import argparse\nargparse.ArgumentParser().add_argument('--epochs', type=int)\n"),
        ("a b.py", f"{NAMED_WHILE_IT_RUNS}p.add_argument('--lr')\n"),
        ("a b.json", json.dumps({"model": "m", "batch_size": 4, "lr": 0.1})),
        ("a b.cfg", "batch_size = explore\n"),
    ],
)
def test_a_line_to_type_names_a_file_with_a_blank_as_one_word(tmp_path, monkeypatch, name, text):
    monkeypatch.chdir(tmp_path)
    path = Path(name)
    path.write_text(text)

    with pytest.raises(UserInputError) as raised:
        (starter.from_script if path.suffix in (".py", ".ipynb") else starter.from_file)(path)

    lines = [line for line in raised.value.hint.splitlines() if "bexplore " in line]
    assert lines and all(name in shlex.split(line[line.index("bexplore ") :]) for line in lines)


@pytest.mark.parametrize("text", ["", "[]", '{"cells": 1}', '{"cells": [{"cell_type": "code"}]}', "\xff"])
def test_what_is_no_notebook_is_one_error(tmp_path, text):
    path = tmp_path / "a.ipynb"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(UserInputError):
        starter.from_script(path)


@pytest.mark.parametrize(
    ("name", "is_size"),
    [
        ("--unet-batch-size", True),
        ("--train.batch_size", True),
        ("total_batch_size", False),
        ("--buffer_batch_size", False),
        ("--replay-batch-size", False),
        ("samples_per_batch", True),
        ("max_tokens_per_batch", False),
        ("steps_per_batch", False),
        ("--auto_scale_batch_size", False),
        ("auto_find_batch_size", False),
    ],
)
def test_a_batch_that_no_pass_takes_is_no_micro_batch(name, is_size):
    assert (rank(name, "micro_batch_size") is not None) == is_size


@pytest.mark.parametrize(
    ("name", "is_folder"),
    [
        ("--path_for_outputs", True),
        ("--model-save-dir", True),
        ("train.results_root", True),
        ("--tensorboard_logs_dir", True),
        ("--path_for_training_data", False),
        ("--save_data_dir", False),
        ("--pretrained_output_path", False),
        ("--checkpoint_path", False),
        ("--save_every", False),
    ],
)
def test_a_folder_that_is_written_is_known_by_its_words(name, is_folder):
    assert (rank(name, "output_dir") is not None) == is_folder


def test_a_file_of_ml_collections_has_its_size_as_an_option_of_its_own(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(
        "from absl import flags\nfrom ml_collections import config_flags\n"
        "flags.DEFINE_string('workdir', None, 'folder')\nconfig_flags.DEFINE_config_file('config', None)\n"
        "flags.mark_flags_as_required(['workdir', 'config'])\n"
    )

    with pytest.raises(UserInputError, match=r"--config names a file of Python, and an option its keys") as raised:
        starter.from_script(path)

    assert raised.value.hint.endswith(f"--config=CONFIG.py --workdir={OUT} --config.KEY={MBS}")


PARSER = "import argparse\np = argparse.ArgumentParser()\n"
FOLDERS = (
    "p.add_argument('--bs', type=int, default=8)\np.add_argument('--log-dir', default='/tmp/gym/')\n"
    "p.add_argument('--save-dir', default='models')\np.add_argument('--load-dir', default='models')\n"
    "p.add_argument('--exp-dir')\np.add_argument('--save-format', default='csv')\n"
)


@pytest.mark.parametrize(
    ("line", "size"),
    [
        ("args.train_batch_size = args.train_batch_size // args.grad_accum_steps", "{global_batch_size}"),
        ("micro = int(args.train_batch_size / args.grad_accum_steps)", "{global_batch_size}"),
        ("steps = len(data) // args.train_batch_size // args.grad_accum_steps", MBS),
        ("steps = len(loader) // args.grad_accum_steps", MBS),
    ],
)
def test_a_size_that_is_divided_by_the_accumulation_is_that_of_a_step(tmp_path, line, size):
    path = tmp_path / "train.py"
    options = "p.add_argument('--train_batch_size', default=512)\np.add_argument('--grad_accum_steps', default=4)\n"
    path.write_text(f"{PARSER}{options}args = p.parse_args()\n{line}\n")
    typed = ("python", str(path), "--train_batch_size", "64", "--grad_accum_steps", "2")

    made, of_typed = starter.from_script(path), starter.from_command(typed)

    for one, samples in ((made, 512), (of_typed, 64)):
        assert f"--train_batch_size {size} --grad_accum_steps {ACC}" in one.text
        own = samples if size != MBS else samples * (4 if one is made else 2)
        assert f"replica_batch_size: {own} " in one.text
    assert f"--train_batch_size takes {size} in place of 64" in of_typed.notes


def test_each_folder_that_a_training_writes_by_default_is_that_of_its_start(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(PARSER + FOLDERS)

    made = starter.from_script(path)
    typed = starter.from_command(["python", str(path), "--bs", "8", "--log-dir=/data/logs"])

    assert f"--bs {MBS} --log-dir {OUT} --save-dir {OUT}\n" in made.text
    assert "--save-dir takes {output_dir} in place of models" in made.notes
    assert f"--bs {MBS} --log-dir={OUT} --save-dir {OUT}\n" in typed.text


def test_a_size_of_what_a_switch_turns_on_is_not_taken(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(
        f"{PARSER}p.add_argument('--gail', action='store_true')\np.add_argument('--gail-batch-size', default=128)\n"
    )

    with pytest.raises(UserInputError, match=r"no option of .* is a micro-batch size: it takes --gail-batch-size"):
        starter.from_script(path)

    path.write_text(f"{PARSER}p.add_argument('--net', action='store_true')\np.add_argument('--unet-batch-size')\n")
    assert words_of(path) == "--unet-batch-size {micro_batch_size}"


SAVES = f"{PARSER}p.add_argument('--batch_size', default=20)\np.add_argument('--save', default='model.pt')\n"


def test_a_file_that_is_written_lies_in_the_output_folder(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SAVES)

    made = starter.from_script(path)
    assert words_of(path) == "--batch_size {micro_batch_size} --save {output_dir}/model.pt"
    assert "--save takes {output_dir}/model.pt in place of model.pt" in made.notes
    assert not any("no output folder" in note for note in made.notes)

    path.write_text(SAVES + "p.add_argument('--log_dir')\n")  # a folder is nearer
    assert words_of(path) == "--batch_size {micro_batch_size} --log_dir {output_dir}"


@pytest.mark.parametrize(
    ("typed", "filled"),
    [
        ("--save my/best.pt", "--save {output_dir}/best.pt"),
        ("--out=my/best.pt", "--out={output_dir}/best.pt"),
        ("--out my/folder", "--out {output_dir}"),
        ("", "--save {output_dir}/model.pt"),
    ],
)
def test_a_typed_file_that_is_written_keeps_its_name(tmp_path, monkeypatch, typed, filled):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SAVES)
    words = ["python", "train.py", "--batch_size", "8", *typed.split()]

    assert f"python train.py --batch_size {{micro_batch_size}} {filled}\n" in starter.from_command(words).text


def test_a_package_that_makes_options_of_arguments_is_to_be_asked(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("import argbind\n@argbind.bind(without_prefix=True)\ndef train(batch_size: int = 12): ...\n")

    with pytest.raises(UserInputError) as raised:
        starter.from_script(path)

    assert raised.value.hint.endswith(f"bexplore init --run-help {path}")
