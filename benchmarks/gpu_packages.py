"""Packages for a machine without a package registry: `fill` collects wheels here, `unpack` uses them there.

Only this project's own dependencies travel, and what the tests need; torch and what came with it stay as that machine
has them. A wheel is unpacked, into a folder beside the sources, only where the machine has no version that will do, so
that neither pip nor a virtual environment is needed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).parent.parent
WHEELS, UNPACKED = ROOT / "wheels", ROOT / ".gpu_packages"
# What a machine with torch has, in the build that fits its GPU.
LEFT_OUT = {"torch", "triton", "transformers", "numpy"}
FOR_TESTS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "jsonschema")
MOST_BYTES = 60 * 2**20
PLATFORMS = ("manylinux_2_17_x86_64", "manylinux2014_x86_64", "manylinux_2_28_x86_64")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_packages", description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    fill_parser = actions.add_parser("fill", help="download wheels")
    fill_parser.add_argument("--python-version", default="3.12", help="of the machine with the GPU")
    actions.add_parser("unpack", help="unpack the wheels that this Python lacks, and print their folder")
    options = parser.parse_args(arguments)
    if options.action == "fill":
        fill(options.python_version)
    else:
        unpack()
        print(UNPACKED)
    return 0


def fill(python_version: str) -> None:
    """Download a wheel of each package, in the version of constraints.txt, that a Python of that version needs."""
    WHEELS.mkdir(exist_ok=True)
    for old in WHEELS.glob("*.whl"):
        old.unlink()
    names = sorted(_closure(_wanted(), python_version))
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--dest", str(WHEELS), "--python-version", python_version, "--implementation", "cp"]
    for platform in PLATFORMS:
        command += ["--platform", platform]
    subprocess.run([*command, *(f"{name}=={metadata.version(name)}" for name in names)], check=True)
    num_bytes = sum(wheel.stat().st_size for wheel in WHEELS.glob("*.whl"))
    if num_bytes > MOST_BYTES:
        raise SystemExit(f"{WHEELS} holds {num_bytes / 2**20:.0f} MiB, more than may travel: leave something out")
    print(f"{len(names)} wheels, {num_bytes / 2**20:.0f} MiB in {WHEELS}")


def _wanted() -> Iterator[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    yield from (Requirement(text) for text in project["dependencies"])
    yield from (Requirement(name) for name in FOR_TESTS)


def _closure(wanted: Iterator[Requirement], python_version: str) -> set[str]:
    """Names of the packages that these need, and theirs, as the packages that are installed here tell."""
    environment = {"python_version": python_version, "python_full_version": f"{python_version}.0", "extra": ""}
    found: set[str] = set()
    todo = list(wanted)
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if name in found | LEFT_OUT or not _applies(requirement, environment):
            continue
        found.add(name)
        todo += [Requirement(text) for text in metadata.requires(name) or []]
    return found


def _applies(requirement: Requirement, environment: dict[str, str]) -> bool:
    return requirement.marker is None or requirement.marker.evaluate(environment)


def unpack() -> None:
    """Unpack what this Python lacks, or has in a version that will not do; the next start finds it there."""
    wheels = {canonicalize_name(parse_wheel_filename(path.name)[0]): path for path in WHEELS.glob("*.whl")}
    if not wheels:
        print(f"{WHEELS} holds no wheels: this Python must have every package", file=sys.stderr)
    sys.path.insert(0, str(UNPACKED))
    todo, seen = list(_wanted()), set()
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if (name, str(requirement.specifier)) in seen or not _applies(requirement, {"extra": ""}):
            continue
        seen.add((name, str(requirement.specifier)))
        if _is_met(requirement):
            continue
        if name not in wheels:
            print(f"{requirement}: absent here, and {WHEELS} has no wheel of it", file=sys.stderr)
            continue
        with zipfile.ZipFile(wheels[name]) as wheel:
            wheel.extractall(UNPACKED)
        todo += [Requirement(text) for text in metadata.requires(name) or []]


def _is_met(requirement: Requirement) -> bool:
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return False
    return requirement.specifier.contains(version, prereleases=True)


if __name__ == "__main__":
    sys.exit(main())
