"""Files that nobody would write: whole ones of every family, broken in many ways, and towers of one token."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bexplore.config.document.reader import YamlReader
from tests.family_builders import TEXTS
from tests.modelzoo_builders import TINY, file_of

ROOT = Path(__file__).parent.parent
MAX_MUTATIONS = 4  # of one file
LONGEST_TOWER = 300_000  # characters, beyond the largest file that is read

# Values that a reader, a number or a message may stumble over.
VALUES = (
    *(
        "",
        "~",
        "null",
        "true",
        "no",
        "0",
        "-1",
        "1e999",
        "-0.0",
        ".nan",
        ".inf",
        "0x10",
        "1_000",
        "9" * 30,
        "9" * 5_000,
    ),
    *("1.5", "1e3", "explore", '"explore"', "Explore", "auto", "[explore]", "{explore: 1}", "[]", "{}", "[[], {}]"),
    *("[1, 2, 3]", '{"a": {"b": 1}}', "*a", "&a 1", "!!python/object:os.system x", "!!binary aGk=", "!!set {a}"),
    *(
        "|\n  text",
        ">-\n  folded",
        '"',
        "'",
        '"\\u0000"',
        '"\\ud800"',
        "\x00",
        "\x1b[2J",
        "\u202e",
        "\ufeff",
        "\U0001f600",
    ),
    *("${a}", "${micro_batch_size}", "${${a}}", "${.x}", "${..}", "${oc.env:HOME}", "${a:b}", "${", "}", "{config}"),
    *(
        "{micro_batch_size}",
        "{output_dir}",
        "{unknown}",
        "{",
        "2001-13-01",
        "1979-05-27 07:32:00",
        "../..",
        "/dev/zero",
    ),
    *("/dev/full", "a: b: c", "? x", "- - -", "# no", "%YAML 9.9", "---", "...", "<<: 1", "x" * 10_000, "\t", "@", "`"),
)
TOKENS = (
    *('"', "'", "[", "]", "{", "}", ":", ",", "-", "?", "|", ">", "&a ", "*a", "!", "!!", "%", "#", "\n", "\r", "\r\n"),
    *(" ", "  ", "\t", "=", ".", "[[", "]]", '"""', "'''", "\\", "\\u", "${", "a", "1", "e", "_", "~", "<<", "\x00"),
    *(
        "\ufeff",
        "\u2028",
        "\x85",
        "a: ",
        "- ",
        "? ",
        "a = ",
        "a.",
        "[a]\n",
        "[[a]]\n",
        "{a: ",
        '{"a": ',
        "a: &a [*a]\n",
    ),
    *("k: ${k}\n", "a.a", "explore: ", "micro_batch_size: explore\n", "---\n"),
)


def seeds() -> list[tuple[str, str]]:
    """Return texts of the families, the ModelZoo and the configurations of this tree, each with an ending."""
    found = [(text, suffix) for suffix, text, _ in TEXTS.values()]
    found += [(json.dumps(file_of(name), indent=1), ".yaml") for name in TINY]
    folders = (ROOT / "configs", ROOT / "benchmarks" / "family_jobs")
    for path in sorted(path for folder in folders for path in folder.iterdir()):
        if path.suffix in {".yaml", ".json"}:
            found.append((path.read_text(), path.suffix))
    return found + [one for text, suffix in found for one in _translated(text, suffix)]


def _translated(text: str, suffix: str) -> list[tuple[str, str]]:
    """Return a YAML or JSON file in the other two notations."""
    if suffix == ".toml":
        return []
    values = YamlReader(f"seed{suffix}").read(text)
    if not isinstance(values, dict):
        return []
    other = (json.dumps(values, indent=2), ".json") if suffix != ".json" else (_as_yaml(values), ".yaml")
    return [other, (_as_toml(values), ".toml")]


def _as_yaml(values: Any, indent: str = "") -> str:
    lines = []
    for key, value in values.items():
        inside = isinstance(value, dict) and value
        lines.append(
            f"{indent}{key}:\n{_as_yaml(value, indent + '  ')}" if inside else f"{indent}{key}: {json.dumps(value)}\n"
        )
    return "".join(lines)


def _as_toml(values: Any) -> str:
    plain = {key: value for key, value in values.items() if not isinstance(value, dict)}
    text = "".join(f"{json.dumps(key)} = {_inline(value)}\n" for key, value in plain.items() if value is not None)
    for key, table in values.items():
        if isinstance(table, dict):
            text += f"\n[{key}]\n"
            text += "".join(
                f"{json.dumps(name)} = {_inline(value)}\n" for name, value in table.items() if value is not None
            )
    return text


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{json.dumps(key)} = {_inline(one)}" for key, one in value.items() if one is not None)
            + "}"
        )
    if isinstance(value, list):
        return f"[{', '.join(_inline(one) for one in value if one is not None)}]"
    return json.dumps(value, ensure_ascii=False)


def hostile_file(chance: random.Random, texts: list[tuple[str, str]]) -> tuple[bytes, str]:
    """Return the content of a file that is broken in one way or several, and its ending."""
    text, suffix = chance.choice(texts)
    kind = chance.random()
    if kind < 0.03:
        return chance.randbytes(chance.randint(0, 3_000)), suffix
    if kind < 0.10:
        text = tower(chance)
    elif kind < 0.15:
        text = "".join(chance.choice(TOKENS) for _ in range(chance.randint(1, 400)))
    else:
        for _ in range(chance.randint(1, MAX_MUTATIONS)):
            text = chance.choice(MUTATIONS)(text, chance, texts)
    if chance.random() < 0.05:
        suffix = chance.choice([".yaml", ".yml", ".json", ".toml"])
    encoding = chance.choices(["utf-8", "utf-8-sig", "utf-16", "latin-1"], [94, 3, 2, 1])[0]
    return text.encode(encoding, "replace"), suffix


def tower(chance: random.Random) -> str:
    """Return one or two tokens many times, up to more than a file may hold."""
    length = int(10 ** chance.uniform(1.0, 5.5))
    first, second = chance.choice(TOKENS), chance.choice(TOKENS)
    unit = chance.choice([first, second + first, first * 8 + second, f"{first}k\n{second}"])
    numbered = chance.random() < 0.3
    count = max(1, min(length, LONGEST_TOWER) // (len(unit) + 6 * numbered))
    body = "".join(f"{unit}{number}" for number in range(count)) if numbered else unit * count
    return (
        chance.choice(["", "a: ", "a = ", "{", "micro_batch_size: explore\n"])
        + body
        + chance.choice(["", "]", "}", "\n"])
    )


Mutation = Callable[[str, random.Random, list[tuple[str, str]]], str]


def _flip(text: str, chance: random.Random, _: Any) -> str:
    at = chance.randrange(len(text) + 1)
    return text[:at] + chance.choice(TOKENS) + text[at + chance.randint(0, 2) :]


def _cut(text: str, chance: random.Random, _: Any) -> str:
    return text[: chance.randrange(len(text) + 1)]


def _without_span(text: str, chance: random.Random, _: Any) -> str:
    start = chance.randrange(len(text) + 1)
    return text[:start] + text[start + chance.randint(1, 40) :]


def _lines(change: Callable[[list[str], random.Random], None]) -> Mutation:
    def changed(text: str, chance: random.Random, _: Any) -> str:
        lines = text.splitlines(keepends=True) or [""]
        change(lines, chance)
        return "".join(lines)

    return changed


def _twice(lines: list[str], chance: random.Random) -> None:
    lines.insert(chance.randrange(len(lines) + 1), chance.choice(lines))


def _many_times(lines: list[str], chance: random.Random) -> None:
    at = chance.randrange(len(lines))
    lines[at] = lines[at] * int(10 ** chance.uniform(0.5, 4.0)) if len(lines[at]) < 200 else lines[at]


def _shuffled(lines: list[str], chance: random.Random) -> None:
    first, second = chance.randrange(len(lines)), chance.randrange(len(lines))
    lines[first], lines[second] = lines[second], lines[first]


def _indented(lines: list[str], chance: random.Random) -> None:
    at = chance.randrange(len(lines))
    lines[at] = chance.choice([" ", "  ", "\t", "        "]) + lines[at]


def _unindented(lines: list[str], chance: random.Random) -> None:
    at = chance.randrange(len(lines))
    lines[at] = lines[at].lstrip(" ")


def _value(text: str, chance: random.Random, _: Any) -> str:
    """Put another value behind a key, in any notation."""
    found = list(re.finditer(r"(?:: *|= *)([^\n,{}\[\]]*)", text))
    if not found:
        return text
    one = chance.choice(found)
    return text[: one.start(1)] + chance.choice(VALUES) + text[one.end(1) :]


def _key(text: str, chance: random.Random, texts: list[tuple[str, str]]) -> str:
    """Give a key the name of another one, of this file or another."""
    name = re.compile(r"[A-Za-z_]\w+(?=\"? *[:=])")
    found = list(name.finditer(text))
    others = [*name.findall(chance.choice(texts)[0]), "explore", "<<", "micro_batch_size", "a.b", "0"]
    if not found:
        return text
    one = chance.choice(found)
    return text[: one.start()] + chance.choice(others) + text[one.end() :]


def _spliced(text: str, chance: random.Random, texts: list[tuple[str, str]]) -> str:
    other = chance.choice(texts)[0]
    return text[: chance.randrange(len(text) + 1)] + other[chance.randrange(len(other) + 1) :]


def _towered(text: str, chance: random.Random, _: Any) -> str:
    at = chance.randrange(len(text) + 1)
    return text[:at] + chance.choice(TOKENS) * chance.choice([3, 30, 300, 3_000]) + text[at:]


def _aliased(text: str, chance: random.Random, _: Any) -> str:
    """Add layers that repeat each other, which only a bound keeps from growing without end."""
    width, depth = chance.randint(2, 12), chance.randint(2, 40)
    if chance.random() < 0.5:
        layers = [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * width)}]" for n in range(1, depth)]
        return "l0: &l0 [x]\n" + "\n".join(layers) + "\n" + text
    layers = [f"l{n}: '{f'${{l{n + 1}}}' * width}'" for n in range(depth)]
    referring = re.sub(r": *\d+", ": ${l0}", text, count=2)
    return "\n".join(layers) + "\n" + referring


def _with_explore(text: str, chance: random.Random, _: Any) -> str:
    return (
        text
        + "\nexplore:\n  "
        + chance.choice(["command", "replicas", "candidates", "max_probes"])
        + ": "
        + chance.choice(VALUES)
    )


MUTATIONS: tuple[Mutation, ...] = (
    *(
        _flip,
        _flip,
        _cut,
        _without_span,
        _value,
        _value,
        _value,
        _key,
        _key,
        _spliced,
        _towered,
        _aliased,
        _with_explore,
    ),
    *(_lines(change) for change in (_twice, _many_times, _shuffled, _indented, _unindented)),
)
