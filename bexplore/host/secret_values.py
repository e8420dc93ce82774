"""Secrets in what a user gives: found by name, by form or by value, and kept out of files, streams and process titles.

Names stay, values become `***`. What must be compared, and may be a secret, is a digest with a key of the user's own.
"""

from __future__ import annotations

import functools
import hmac
import json
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

MASK = "***"
STATE_VARIABLE = "XDG_STATE_HOME"
_DIGITS, _KEY_BYTES = 16, 32
# A shorter value is hidden where its name or form shows it, and not wherever its characters occur.
_LEAST_CHARACTERS = 6

# Names. A word of a name ends at `_`, `-`, `.` or where the next one has a capital.
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SECRET_ENDS = ("password", "passwd", "passphrase", "secret", "secrets", "apikey", "authtoken", "accesstoken")
_SECRET_WORDS = ("credential", "credentials", "authorization", "bearer", "jwt", "webhook", "pwd", "pat", "cookie")
_SECRET_PAIRS = ("access key", "api key", "secret key", "private key", "connection string", "auth token")
_LAST_WORDS = ("auth", "dsn", "sas", "sig", "signature")
# What a `token` of a vocabulary is called, in options of tokenizers, and whose `key` is a column.
_OF_TEXT = frozenset(
    (
        *("pad", "eos", "bos", "unk", "sep", "cls", "mask", "special", "image", "video", "audio", "speech", "text"),
        *("num", "max", "min", "per", "n", "new", "start", "end", "first", "last", "stop", "next", "begin"),
        *("row", "col", "prompt", "decoder", "ignore", "fim", "tool", "placeholder"),
    )
)
_OF_SECRETS = frozenset(
    (
        *("api", "access", "secret", "private", "encryption", "account", "license", "auth", "service", "storage"),
        *("signing", "ssh", "client", "subscription", "master", "worker"),
        *("wandb", "hf", "hub", "kaggle", "comet", "neptune", "openai", "azure", "aws", "gcp"),
    )
)
_NO_SECRETS = frozenset(["pwd", "oldpwd", "ssh_auth_sock", "xauthority"])  # variables of every shell

# Forms. Sources: what GitHub, GitLab, Hugging Face, Slack, AWS, Google, OpenAI, npm and Docker document of their own.
_FORMS = re.compile(
    r"\b(?:hf_\w{16,}|gh[pousr]_\w{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}|sk-[\w-]{16,}|xox[abeprs]-[\w-]{10,}"
    r"|AKIA[0-9A-Z]{16}|AIza[\w-]{30,}|npm_\w{30,}|dckr_pat_[\w-]{20,}|nvapi-[\w-]{20,}|r8_\w{30,}|wandb_v\d_\w{16,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]+)?)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
_USER_OF_URL = re.compile(r"(?P<head>\b[A-Za-z][\w+.-]*:/{1,3}[^\s/?#@:'\"]*:)(?P<value>[^\s'\"]+)(?=@)")
_HEADER = re.compile(
    r"(?P<head>\b(?:proxy-)?authorization\b['\"]?\s*[:=]\s*['\"]?)(?:(?:bearer|basic|token|digest)\s+)?"
    r"(?P<value>[^'\"\n]+)",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(?P<head>\bbearer\s+)(?P<value>[\w+/=.~-]{8,})", re.IGNORECASE)
_ASSIGNED = re.compile(
    r"(?P<head>(?P<name>[A-Za-z_][\w.-]*)(?:=|['\"]?\s*:\s*|['\"]\s*=\s*))"
    r"(?P<value>\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[^\s,;&'\"()\[\]{}]+)"
)
_OPTION_IN_TEXT = re.compile(
    r"(?P<head>(?<![\w-])--?(?P<name>[A-Za-z][\w.-]*)\s+)(?P<value>'[^']*'|\"[^\"]*\"|[^\s-]\S*)"
)
VARIABLE_NAME = re.compile(r"[A-Za-z_]\w*")
_OPTION = re.compile(r"--?(?P<name>[A-Za-z][\w.-]*)")
# What a name may promise and a value show not to be one: numbers, words of a switch, placeholders.
_PLAIN = re.compile(r"[-+]?[\d.,:]+|true|false|none|null|yes|no|on|off|\{\w+\}|\*{3}|", re.IGNORECASE)

_remembered: dict[str, None] = {}


def is_secret_name(name: str) -> bool:
    """Return whether a variable, an option or a key is named as secrets are: WANDB_API_KEY, --hf-token, PGPASSWORD."""
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or name.lower() in _NO_SECRETS:
        return False
    if any(word.endswith(_SECRET_ENDS) or word in _SECRET_WORDS for word in words):
        return True
    if any(pair in " ".join(words) for pair in _SECRET_PAIRS):
        return True
    *before, last = words
    if last == "token" or (last.endswith("token") and len(last) < 12):
        return not _OF_TEXT.intersection(before)
    is_key = last == "key" and (bool(_OF_SECRETS.intersection(before)) or (name.isupper() and bool(before)))
    return is_key or (last in _LAST_WORDS and not _OF_TEXT.intersection(before))


def remember(*values: str) -> None:
    """Hide these values wherever they occur from now on, as far as they are no plain words, numbers or paths."""
    for value in values:
        if len(value) >= _LEAST_CHARACTERS and not _PLAIN.fullmatch(value):
            _remembered.setdefault(value)


def remember_given(document: Mapping[str, Any]) -> None:
    """Remember the secrets of a file: what stands under such names, and URLs, words and variables of `explore`."""
    remember(*_values_of_names(document))
    section = document.get("explore")
    if not isinstance(section, Mapping):
        return
    storage, command, env = section.get("storage"), section.get("command"), section.get("env")
    if isinstance(storage, str):
        remember(*_values_by_form(storage))
    words = [str(word) for word in command] if isinstance(command, list) else [str(command or "")]
    remember(*(word for word, shown in zip(words, hidden_words(words), strict=True) if shown == MASK))
    remember(*(value for word in words for value in _values_by_form(word)))
    for name, value in env.items() if isinstance(env, Mapping) else ():
        text = str(value)
        if is_secret_name(str(name)) or (len(text) >= 8 and "/" not in text and "{" not in text):
            remember(text)
        remember(*_values_by_form(text))


def hidden(text: str, *, by_value: bool = True) -> str:
    """Return a text in which the values of secrets are masked.

    Args:
        text: Any text.
        by_value: Whether values that are known, of the environment too, are looked for. What must be the same in every
            environment is masked by name and form alone.
    """
    if not text:
        return text
    known = _known_values() if by_value else None
    if known is not None:
        text = known.sub(MASK, text)
    text = _FORMS.sub(MASK, text)
    for pattern in (_USER_OF_URL, _HEADER, _BEARER):
        text = pattern.sub(lambda found: found["head"] + MASK, text)
    for pattern in (_ASSIGNED, _OPTION_IN_TEXT):
        text = _with_masks(pattern, text)
    return text


def hidden_words(words: Sequence[str], *, by_value: bool = True) -> list[str]:
    """Return the words of a command line, those masked that are values of secrets."""
    shown, before = [], ""
    for word in words:
        option = _OPTION.fullmatch(before)
        is_value = option is not None and is_secret_name(option["name"]) and not word.startswith("-")
        is_secret = is_value and not _PLAIN.fullmatch(word)
        shown.append(MASK if is_secret else hidden(word, by_value=by_value))
        before = word
    return shown


def hidden_arguments(arguments: Sequence[str]) -> list[str]:
    """Return the arguments of this program as `hidden_words`, and of variables for a command the names alone."""
    shown, before = [], ""
    for given, word in zip(arguments, hidden_words(arguments), strict=True):
        option, equals, rest = given.partition("=")
        if before == "--env":
            word = _name_alone(given)
        elif option == "--env" and equals:
            word = f"--env={_name_alone(rest)}"
        elif "explore.env" in given and equals:
            word = f"{given[: given.index('explore.env') + len('explore.env')]}={MASK}"
        shown.append(word)
        before = given
    return shown


def _name_alone(assignment: str) -> str:
    """Return NAME=VALUE without the value; nothing of what has no name."""
    name, equals, _ = assignment.partition("=")
    return (f"{name}={MASK}" if equals else name) if VARIABLE_NAME.fullmatch(name) else MASK


def hidden_record(value: Any, *, by_value: bool = True, name: str = "") -> Any:
    """Return JSON values in which texts are masked: those under the name of a secret, and secrets within others."""
    if isinstance(value, Mapping):
        return {key: hidden_record(one, by_value=by_value, name=str(key)) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [hidden_record(one, by_value=by_value, name=name) for one in value]
    if not isinstance(value, str):
        return value
    if name and is_secret_name(name) and not _PLAIN.fullmatch(value):
        return MASK
    return hidden(value, by_value=by_value)


def keyed_digest(text: str) -> str:
    """Return sixteen hexadecimal digits of a text, which nobody can find out by trying texts without the user's key."""
    return hmac.new(_key(), text.encode(), "sha256").hexdigest()[:_DIGITS]


def hide_in_file(path: Path) -> None:
    """Mask the values that are known in a file that another program has written; nothing where it cannot be read."""
    known = _known_values()
    if known is None:
        return
    with suppress(OSError):
        text = path.read_bytes().decode(errors="surrogateescape")
        if known.search(text):
            path.write_bytes(known.sub(MASK, text).encode(errors="surrogateescape"))


def hide_process_title(arguments: Sequence[str], shown: Sequence[str]) -> None:
    """Write the masked arguments over those that /proc/PID/cmdline shows of this process.

    Args:
        arguments: The last arguments of this process.
        shown: As many, masked; a longer one is cut, a shorter one is filled with spaces.
    """
    import ctypes  # a hundredth of a second, which a command without secrets does not need

    given = [os.fsencode(word) for word in arguments]
    masked = [os.fsencode(word)[: len(one)].ljust(len(one)) for word, one in zip(shown, given, strict=True)]
    with suppress(OSError, ValueError, IndexError):  # no /proc, as in some sandboxes: there nobody reads it either
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        begin, end = int(fields[45]), int(fields[46])  # arg_start and arg_end of proc(5), counted from the state
        old, new = (b"".join(one + b"\0" for one in words) for words in (given, masked))
        if 0 < len(old) <= end - begin and ctypes.string_at(end - len(old), len(old)) == old:
            ctypes.memmove(end - len(new), new, len(new))


def _with_masks(pattern: re.Pattern[str], text: str) -> str:
    parts, done = [], 0
    for found in _secrets_in(pattern, text):
        quote = found["value"][0] if found["value"][0] in "'\"" else ""
        parts += [text[done : found.end("head")], quote, MASK, quote]
        done = found.end()
    return "".join([*parts, text[done:]])


def _secrets_in(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """Yield the matches of names with values that are secrets; the value of another name may hold a further name."""
    place = 0
    while found := pattern.search(text, place):
        is_secret = _is_secret(found)
        place = found.end() if is_secret else found.end("head")
        if is_secret:
            yield found


def _is_secret(found: re.Match[str]) -> bool:
    name, bare = found["name"], found["value"].strip("'\"")
    if not is_secret_name(name) or _PLAIN.fullmatch(bare):
        return False
    is_of_sentence = name.islower() and name.isalpha() and "=" not in found["head"] and found["head"][0] != "-"
    return not is_of_sentence or found["value"] != bare or _looks_random(bare)  # `unexpected token: name`


def _looks_random(value: str) -> bool:
    return len(value) >= 8 and any(one.isdigit() for one in value)


def _values_of_names(value: Any, name: str = "") -> Iterator[str]:
    """Yield the texts that stand under the name of a secret, at any depth."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from _values_of_names(one, str(key))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _values_of_names(one, name)
    elif isinstance(value, str) and name and is_secret_name(name):
        yield value


def _values_by_form(text: str) -> Iterator[str]:
    """Yield the values that `hidden` masks in a text, and what percent signs in them stand for."""
    found = [match[0] for match in _FORMS.finditer(text)]
    found += [match["value"] for pattern in (_USER_OF_URL, _HEADER, _BEARER) for match in pattern.finditer(text)]
    for pattern in (_ASSIGNED, _OPTION_IN_TEXT):
        found += [match["value"].strip("'\"") for match in _secrets_in(pattern, text)]
    for value in found:
        yield value
        yield unquote(value)


def _known_values() -> re.Pattern[str] | None:
    """Return a pattern of all values that are known; None for none."""
    own = [value for name, value in os.environ.items() if _is_of_secret(name) and len(value) >= _LEAST_CHARACTERS]
    return _any_of(
        frozenset(_remembered), frozenset(one for one in own if not _PLAIN.fullmatch(one) and "/" not in one)
    )


def _is_file(value: str) -> bool:
    """Return whether a value is the path of a file that exists, such as one of credentials: the path is no secret."""
    try:
        return value.startswith(("/", "~")) and Path(value).expanduser().exists()
    except (OSError, ValueError, RuntimeError):
        return False


_is_of_secret = functools.lru_cache(maxsize=4096)(is_secret_name)


@functools.lru_cache(maxsize=8)
def _any_of(*groups: frozenset[str]) -> re.Pattern[str] | None:
    """Return a pattern of values as they are, and as JSON, Python and shells write them."""
    forms = {form for group in groups for value in group for form in _forms_of(value)}
    if not forms:
        return None
    return re.compile("|".join(_whole(form) for form in sorted(forms, key=len, reverse=True)))


def _forms_of(value: str) -> Iterable[str]:
    return {value, json.dumps(value)[1:-1], repr(value)[1:-1], value.replace("'", "'\"'\"'")}


def _whole(form: str) -> str:
    """Return a pattern of a value that is no part of a longer word."""
    before, after = r"(?<!\w)" if form[0].isalnum() else "", r"(?!\w)" if form[-1].isalnum() else ""
    return f"{before}{re.escape(form)}{after}"


@functools.cache
def _key() -> bytes:
    """Return the user's key, which is made where there is none.

    In the user's state and not in a run: the key must not travel with what people share, and all runs of a user compare
    with one key.
    """
    try:
        folder = Path(os.environ.get(STATE_VARIABLE) or Path.home() / ".local" / "state", "bexplore")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _read_key(folder / "key") or _made_key(folder / "key")
    except (OSError, RuntimeError):  # read-only, or no home: what has digests is then another job in each process
        return secrets.token_bytes(_KEY_BYTES)


def _read_key(path: Path) -> bytes | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as handle:
        if stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o077:
            os.fchmod(descriptor, 0o600)
        key = handle.read(_KEY_BYTES)
    return key if len(key) == _KEY_BYTES else None


def _made_key(path: Path) -> bytes:
    """Make the key; of processes that do so together, all take the first one's."""
    temporary = path.with_name(f".key.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(secrets.token_bytes(_KEY_BYTES))
        with suppress(FileExistsError):
            os.link(temporary, path)
        key = _read_key(path)
        if key is None:  # cut short by a full disk
            temporary.replace(path)
            key = _read_key(path)
    finally:
        temporary.unlink(missing_ok=True)
    if key is None:
        raise OSError("the key cannot be written")
    return key
