from __future__ import annotations

import pytest

from bexplore.config import starter

MBS, OUT, ACC = "{micro_batch_size}", "{output_dir}", "{accumulation}"

# Style -> the script, and the words behind its name.
STYLES = {
    "argparse": (
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr', type=float, default=1e-3)\n"
        "p.add_argument('-b', '--batch-size', type=int, default=16)\np.add_argument('--val-batch-size', type=int)\n"
        "p.add_argument('--save-dir')\np.add_argument('--amp', action='store_true')\n",
        f"--batch-size {MBS} --save-dir {OUT}",
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
        "def main(batch_size: Annotated[int, typer.Option(help='n')], out: Annotated[str, typer.Argument()] = 'o'): ...\n"
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
