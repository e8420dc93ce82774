"""The commands and their exit codes: the command-line library's only door.

Every command imports what it needs when it runs, so that `bexplore --help` starts without torch, Optuna or pydantic.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bexplore import __version__
from bexplore.errors import BexploreError, ExitCode, UserInputError, UserProgramError

if TYPE_CHECKING:
    from bexplore.config import Config
    from bexplore.events import JobEvent

CONFIG = click.argument("config", type=click.Path(path_type=Path))


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """The options that every command which reads a configuration has.

    Attributes:
        as_json: JSON lines on stdout, nothing else there.
        overrides: `dotted.key=value`, in order.
        model_dir: Folder of the results; None for the configuration's own.
        allow_code: Whether import paths of the configuration may be imported.
        mode: `train` or `eval`; None for what the file asks for.
        verbosity: -1 to 2.
    """

    as_json: bool
    overrides: tuple[str, ...]
    model_dir: str | None
    allow_code: bool
    mode: str | None
    verbosity: int

    def load(self, path: Path) -> Config:
        """The checked configuration."""
        from bexplore import dialects
        from bexplore.job import Mode

        mode = None if self.mode is None else Mode(self.mode)
        return dialects.load(path, overrides=self.overrides, allow_code=self.allow_code, mode=mode)


def common_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the common options to a command and hand them over as one `common`."""

    @click.option("--json", "as_json", is_flag=True, help="JSON lines on stdout, one event a line, nothing else there.")
    @click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a dotted key; repeatable.")
    @click.option("--seed", type=click.IntRange(min=0), help="Same as --set explore.seed=N.")
    @click.option("--model-dir", metavar="DIR", help="Results go to local_compile_<mode>/DIR.")
    @click.option("--no-code", is_flag=True, help="Refuse configurations that name code to import.")
    @click.option("--mode", type=click.Choice(["train", "eval"]), help="Which side of the configuration to explore.")
    @click.option("-v", "--verbose", count=True, help="Say more on stderr; twice for everything.")
    @click.option("-q", "--quiet", is_flag=True, help="Say only errors on stderr.")
    @wraps(command)
    def with_common(
        *arguments: Any,
        as_json: bool,
        overrides: tuple[str, ...],
        seed: int | None,
        model_dir: str | None,
        no_code: bool,
        mode: str | None,
        verbose: int,
        quiet: bool,
        **others: Any,
    ) -> Any:
        from bexplore import logs

        verbosity = -1 if quiet else min(verbose, 2)
        logs.configure(verbosity)
        common = Common(
            as_json=as_json,
            overrides=overrides if seed is None else (*overrides, f"explore.seed={seed}"),
            model_dir=model_dir,
            allow_code=not no_code,
            mode=mode,
            verbosity=verbosity,
        )
        return command(*arguments, common=common, **others)

    return with_common


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="bexplore")
def cli() -> None:
    """Find the fastest micro-batch size that fits, for any PyTorch training job, and say how sure it is.

    Set `micro_batch_size: explore` in the job's YAML, then:

        bexplore explore job.yaml
    """


@cli.command()
@CONFIG
@click.option("--fresh", is_flag=True, help="Start over, even if an earlier run is there.")
@click.option("--dry-run", is_flag=True, help="Say what would be done and about how long it takes, and end.")
@click.option("--storage", metavar="URL", help="Optuna storage (sqlite:///..., postgresql://...).")
@common_options
def explore(config: Path, fresh: bool, dry_run: bool, storage: str | None, common: Common) -> None:
    """Explore CONFIG: stream recommendations, then say which micro-batch size to use and why.

    Run again, it goes on where an unfinished run ended, and prints the stored result of a finished one.
    """
    from bexplore.exploration import Surroundings
    from bexplore.exploration import explore as events_of

    if storage is not None:
        common = _with_override(common, f"explore.storage={json.dumps(storage)}")
    loaded = common.load(config)
    if not loaded.request.is_search:
        _nothing_to_explore(loaded, common)
        return
    stopper = _Stopper()
    show = _Show(loaded, common)
    surroundings = Surroundings(
        model_dir=common.model_dir,
        fresh=fresh,
        dry_run=dry_run,
        on_progress=show.progress,
        should_stop=stopper.reason,
    )
    with stopper, show:
        last = show.all(events_of(loaded, surroundings))
    if last is not None and last.get("stop_reason") == "interrupted":
        sys.exit(ExitCode.INTERRUPTED)


@cli.command()
@CONFIG
@click.option("--micro-batch-size", type=click.IntRange(min=1), required=True, metavar="N", help="The size to run.")
@click.option(
    "--compilation", type=click.Choice(["exact", "shared", "eager"]), default="exact", show_default=True, help="How."
)
@common_options
def probe(config: Path, micro_batch_size: int, compilation: str, common: Common) -> None:
    """Compile and run one size of CONFIG for real, and say what was measured."""
    from bexplore.events import probe_record
    from bexplore.explorer import ProbeFinished
    from bexplore.sinks.bexp import probe_sentence
    from bexplore.single import probe_once

    observation = probe_once(
        common.load(config), micro_batch_size=micro_batch_size, compilation=compilation, model_dir=common.model_dir
    )
    click.echo(
        json.dumps(probe_record(observation))
        if common.as_json
        else probe_sentence(ProbeFinished(observation=observation))
    )
    if observation.traceback_text and not observation.is_measured:
        click.echo(observation.traceback_text, err=True)
    if not observation.is_measured:
        sys.exit(ExitCode.NOTHING_FITS if observation.outcome == "out_of_memory" else ExitCode.USER_INPUT)


@cli.command()
@CONFIG
@click.option("--memory-budget", metavar="SIZE", help="Such as 80GiB; same as --set explore.memory_budget=SIZE.")
@click.option("--micro-batch-sizes", metavar="N,N,...", help="Sizes to print; powers of two where not given.")
@click.option("--device-name", metavar="NAME", help="Take the memory of a device by name, such as h100.")
@common_options
def trace(
    config: Path, memory_budget: str | None, micro_batch_sizes: str | None, device_name: str | None, common: Common
) -> None:
    """Trace the step of CONFIG once: memory, flops and bytes at every size, without running it."""
    from bexplore.sinks.trace_table import trace_table
    from bexplore.single import trace_once

    if memory_budget is not None:
        common = _with_override(common, f"explore.memory_budget={memory_budget}")
    record = trace_once(
        common.load(config),
        micro_batch_sizes=_sizes(micro_batch_sizes),
        device_name=device_name,
        model_dir=common.model_dir,
    )
    click.echo(json.dumps(record) if common.as_json else trace_table(record))


@cli.command("batch-sizes")
@click.option("--micro-batch-size", type=click.IntRange(min=1), required=True, metavar="N", help="Of one replica.")
@click.option(
    "--num-replicas", type=click.IntRange(min=1), default=1, show_default=True, help="Data-parallel replicas."
)
@click.option("--near", type=click.IntRange(min=1), metavar="N", help="List sizes around this global batch size.")
@click.option(
    "--rule", type=click.Choice(["strict", "even"]), default="strict", show_default=True, help="Divisibility."
)
@click.option("--sequence-length", type=click.IntRange(min=1), help="Tokens a sample, to count tokens.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def batch_sizes(
    micro_batch_size: int, num_replicas: int, near: int | None, rule: str, sequence_length: int | None, as_json: bool
) -> None:
    """List the global batch sizes that are valid with a micro-batch size."""
    import dataclasses

    from bexplore.batching import near_value_message, valid_global_batch_sizes

    sizes = valid_global_batch_sizes(micro_batch_size, num_replicas, near, rule, sequence_length=sequence_length)
    if as_json:
        for size in sizes:
            click.echo(json.dumps(dataclasses.asdict(size)))
        return
    click.echo(f"{'batch_size':>10}  {'accumulation':>12}" + (f"  {'tokens':>14}" if sequence_length else ""))
    for size in sizes:
        tokens = f"  {size.num_tokens:>14,}" if size.num_tokens is not None else ""
        click.echo(f"{size.global_batch_size:>10}  {size.accumulation_steps:>12}{tokens}")
    if near is not None:
        click.echo(near_value_message(near, micro_batch_size, num_replicas, rule))


@cli.command()
def schema() -> None:
    """Print a JSON Schema of the configuration, for editors."""
    from bexplore.config import json_schema

    click.echo(json.dumps(json_schema(), indent=2))


class _Show:
    """All sinks of one exploration, and the live line."""

    def __init__(self, config: Config, common: Common) -> None:
        from datetime import UTC, datetime

        from rich.console import Console

        from bexplore.sinks.bexp import BexpStream, RunLog
        from bexplore.sinks.console import Progress
        from bexplore.sinks.json_lines import EventFile, JsonLines

        def now() -> datetime:
            return datetime.now(UTC)

        self._config, self._common = config, common
        self._progress = Progress(Console(stderr=True, quiet=common.verbosity < 0))
        self._log = RunLog(now)
        to_stdout = JsonLines(sys.stdout) if common.as_json else BexpStream(sys.stdout, now)
        self._sinks = [self._log, EventFile(), self._progress, to_stdout]

    def progress(self, message: dict[str, Any]) -> None:
        """What a worker reports."""
        self._progress.report(message)

    def all(self, events: Iterable[JobEvent]) -> dict[str, Any] | None:
        """Hand every event to every sink; returns the record of the last words."""
        from bexplore.events import Finished, Stored, event_record

        last = None
        try:
            for event in events:
                for sink in self._sinks:
                    sink(event)
                if isinstance(event, Finished | Stored):
                    last = event_record(event)
        except BexploreError as error:
            self._log.write(220, error.message)
            raise
        if last is not None and not self._common.as_json:
            self._last_words(last)
        return last

    def _last_words(self, record: dict[str, Any]) -> None:
        from bexplore.sinks.last_words import last_words

        key = ".".join(str(part) for part in self._config.request.path)
        text = last_words(record, yaml_key=key, tolerance=self._config.explore.tolerance)
        click.echo("\n" + text)

    def __enter__(self) -> _Show:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._progress.close()


class _Stopper:
    """Ctrl-C once: end after what must be whole is whole. Twice: end now."""

    def __init__(self) -> None:
        self._asked = False
        self._before: Any = None

    def reason(self) -> str | None:
        """The stop reason, once asked for."""
        return "interrupted" if self._asked else None

    def __enter__(self) -> _Stopper:
        self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_exception: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _handle(self, _number: int, _frame: Any) -> None:
        from bexplore.engine.process import is_waiting

        if self._asked or is_waiting():
            self._asked = True
            raise KeyboardInterrupt
        self._asked = True


def _nothing_to_explore(config: Config, common: Common) -> None:
    """An int or null is used as it is; say so and leave."""
    request = config.request
    what = f"micro_batch_size is {request.value}" if request.value is not None else "there is no micro-batching"
    text = f"{config.path}: {what}: nothing to explore. Set it to `explore` to search."
    record = {"event": "nothing_to_explore", "micro_batch_size": request.value, "message": text}
    click.echo(json.dumps(record) if common.as_json else text)
    for warning in config.warnings:
        click.echo(f"warning: {warning}", err=True)


def _with_override(common: Common, override: str) -> Common:
    import dataclasses

    return dataclasses.replace(common, overrides=(*common.overrides, override))


def _sizes(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() and 0 < int(part) <= 10**9 for part in parts):
        raise UserInputError(
            f'--micro-batch-sizes must be positive integers with commas between them, not "{text}"',
            hint="type --micro-batch-sizes 1,2,4",
        )
    return tuple(int(part) for part in parts)


def main() -> None:
    """Run the command line; errors raised on purpose become a message, a hint and an exit code."""
    try:
        cli(prog_name="bexplore", standalone_mode=False)
    except UserProgramError as error:
        if error.traceback_text:
            click.echo(error.traceback_text.rstrip() + "\n", err=True)
        _complain(error)
    except BexploreError as error:
        _complain(error)
    except click.ClickException as error:
        error.show()
        sys.exit(ExitCode.USER_INPUT)
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        sys.exit(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()  # the reader is gone; Python would complain about its own stdout at exit
        sys.exit(ExitCode.DONE)


def _complain(error: BexploreError) -> None:
    click.echo(f"error: {error.message}", err=True)
    if error.hint:
        click.echo(f"hint: {error.hint}", err=True)
    sys.exit(error.exit_code)
