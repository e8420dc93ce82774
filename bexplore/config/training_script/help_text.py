"""The options that a program's own `--help` lists: of argparse, click, typer, absl, fire, tyro and their like."""

from __future__ import annotations

import re
from collections.abc import Sequence

from bexplore.config.training_script.parameters import Interface, Parameter

_OPTION = re.compile(r"^[\s│|*]*(?:-\w(?:[ =]\S+)?\s*,\s*)?(?P<head>--[A-Za-z][\w.-]*)(?P<rest>.*)$")
_SHORT = re.compile(r"^[\s│|*]*(?P<head>-\w)\s+(?P<rest>[A-Z].*)$")
_SPELLING = re.compile(r"(?<![\w-])--?[A-Za-z][\w.-]*")
_DEFAULT = re.compile(r"[(\[]default ?[:=]? ?'?(?P<value>[^'\])]+)'?[)\]]")
_REQUIRED = re.compile(r"[(\[]required[)\]]")
_COMMANDS = re.compile(r"^(?:[╭─ ]*Commands\b|commands:)", re.IGNORECASE)
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def read_help(text: str, typed: Sequence[str] = ()) -> Interface:
    """Return the options, the required words that are not typed yet, and the commands of a help text."""
    lines = _ESCAPES.sub("", text).splitlines()
    usage = [word for word in _required_of_usage(lines) if word not in typed]
    braces = [word for word in usage if re.fullmatch(r"\{[\w,-]+\}", word)]
    commands = braces[-1].strip("{}").split(",") if braces else _listed_commands(lines)
    places = [
        word for word in usage if re.fullmatch(r"[A-Za-z_][\w.-]*", word) and word not in ("OPTIONS", "COMMAND", "ARGS")
    ]
    parameters = [Parameter(name=word.lower(), head="", is_required=True) for word in places]
    for index, line in enumerate(lines):
        found = _OPTION.match(line) or _SHORT.match(line)
        if found is not None and found["head"] not in ("--help", "--helpfull", "--helpshort"):
            parameters.append(_option(found, " ".join(lines[index : index + 3]), {*usage}, typed))
    unique = {one.head or one.name: one for one in parameters}
    return Interface("--help", list(unique.values()), {name: Interface("--help") for name in commands})


def _option(found: re.Match[str], text: str, usage: set[str], typed: Sequence[str]) -> Parameter:
    head = found["head"].rstrip(".")
    spellings = _SPELLING.findall(re.split(r"\s{2,}", found[0].strip())[0])  # the usage has the first one
    is_typed = any(word.partition("=")[0] in spellings for word in typed)
    own = re.split(r"\s-{1,2}[a-zA-Z]", text.partition(found["head"])[2])[0]  # up to the next option
    default = _DEFAULT.search(own)
    value = default["value"].strip() if default is not None else None
    is_required = not usage.isdisjoint((head, *spellings)) or _REQUIRED.search(own) is not None
    described = re.split(r"\s{2,}", own.strip(), maxsplit=1)
    return Parameter(
        name=head.lstrip("-"),
        head=head,
        is_required=is_required and not is_typed,
        default=None if value == "None" else value,
        is_unset=value == "None" and not is_required,
        help_text=described[1] if len(described) > 1 else "",
    )


def _required_of_usage(lines: list[str]) -> list[str]:
    """Return the words of the usage that stand outside of brackets, without the program and the values of options."""
    start = next((index for index, line in enumerate(lines) if line.strip().lower().startswith("usage:")), None)
    if start is None:
        return []
    end = next((index for index in range(start + 1, len(lines)) if not lines[index].strip()), len(lines))
    text = re.sub(r"^\s*usage:\s*", "", " ".join(line.strip() for line in lines[start:end]), flags=re.IGNORECASE)
    while (shorter := re.sub(r"\[[^\[\]]*\]", " ", text)) != text:
        text = shorter
    words = text.split()
    program = next((index for index, word in enumerate(words) if word.endswith(".py")), 0)
    kept, after_option = [], False
    for word in words[program + 1 :]:
        if not after_option and word != "...":
            kept.append(word)
        after_option = word.startswith("-") and "=" not in word
    return kept


def _listed_commands(lines: list[str]) -> list[str]:
    start = next((index for index, line in enumerate(lines) if _COMMANDS.match(line)), None)
    found = []
    for line in lines[start + 1 :] if start is not None else []:
        word = re.match(r"^[│ ]\s+(?P<word>[a-z][\w-]*)", line)
        if word is None:
            break
        found.append(word["word"])
    return found
