"""What the libraries of an emulated device need, and what is said where it is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bexplore.emulated_gpu import built_libraries, libraries
from bexplore.emulated_gpu.libraries import read_torch
from bexplore.errors import EmulationError, ExitCode

CUDA_VERSION = """
from typing import Optional
__version__ = '2.13.0+cu130'
cuda: Optional[str] = '13.0'
git_version = 'abc'
"""
METADATA = """
Requires-Dist: nvidia-cudnn-cu13==9.20.0.48; platform_system == "Linux"
Requires-Dist: nvidia-nccl-cu13==2.29.7; platform_system == "Linux"
"""


@pytest.fixture
def cuda_torch(tmp_path: Path) -> Path:
    """A folder that says of itself what a CUDA build of torch does."""
    folder = tmp_path / "site" / "torch"
    (folder / "lib").mkdir(parents=True)
    (folder / "version.py").write_text(CUDA_VERSION)
    wheel = tmp_path / "site" / "torch-2.13.0.dist-info"
    wheel.mkdir()
    (wheel / "METADATA").write_text(METADATA)
    return folder


def with_headers(folder: Path, version: int = 13000) -> None:
    (folder / "crt").mkdir(parents=True)
    (folder / "crt" / "host_defines.h").touch()
    (folder / "cuda_runtime_api.h").touch()
    (folder / "cuda.h").write_text(f"#define CUDA_VERSION {version}\n")


def with_programs(folder: Path, *names: str) -> str:
    folder.mkdir()
    for name in names:
        (folder / name).symlink_to("/bin/true")
    return str(folder)


def test_the_versions_are_read_without_an_import_of_torch(cuda_torch):
    found = read_torch(cuda_torch)

    assert (found.version, found.cuda, found.cudnn, found.nccl) == ("2.13.0+cu130", (13, 0), 92000, 22907)


def test_a_cpu_build_is_named_with_what_to_install(cuda_torch):
    (cuda_torch / "version.py").write_text("__version__ = '2.13.0+cpu'\ncuda = None\n")

    with pytest.raises(EmulationError, match=r"needs a CUDA build of PyTorch, and 2\.13\.0\+cpu has none") as caught:
        built_libraries(cuda_torch)
    assert "pytorch.org" in caught.value.hint
    assert caught.value.exit_code == ExitCode.USER_INPUT


def test_a_folder_without_torch_is_refused(tmp_path):
    with pytest.raises(EmulationError, match="holds no PyTorch"):
        built_libraries(tmp_path)


@pytest.mark.parametrize(
    ("programs", "message", "package"),
    [
        ((), "no C.. compiler", "g++"),
        (("g++",), "nm, which reads", "binutils"),
        (("g++", "nm"), "readelf, which reads", "binutils"),
    ],
)
def test_a_missing_program_is_named_with_its_package(cuda_torch, tmp_path, monkeypatch, programs, message, package):
    monkeypatch.setenv("PATH", with_programs(tmp_path / "bin", *programs))

    with pytest.raises(EmulationError, match=message) as caught:
        built_libraries(cuda_torch)
    assert package in caught.value.hint


def test_missing_headers_are_named_with_where_they_were_sought(cuda_torch, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", with_programs(tmp_path / "bin", "g++", "nm", "readelf"))
    with_headers(tmp_path / "old", version=12060)
    monkeypatch.setenv(libraries.HEADERS_VARIABLE, str(tmp_path / "old"))
    monkeypatch.setattr(libraries, "_TOOLKIT", tmp_path / "none")
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)

    with pytest.raises(EmulationError, match="headers of CUDA 13") as caught:
        built_libraries(cuda_torch)
    assert str(tmp_path / "old") in caught.value.message
    assert libraries.HEADERS_VARIABLE in caught.value.hint


def test_a_build_that_fails_leaves_nothing_behind(cuda_torch, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", with_programs(tmp_path / "bin", "g++", "nm", "readelf"))
    monkeypatch.setenv("BEXPLORE_CACHE_DIR", str(tmp_path / "kept"))
    with_headers(cuda_torch.parent / "triton" / "backends" / "nvidia" / "include")

    with pytest.raises(EmulationError, match="holds CUDA's libraries within its own"):
        built_libraries(cuda_torch)
    assert [path.name for path in (tmp_path / "kept" / "emulated_gpu").iterdir()] == [".lock"]


def test_what_was_built_is_used_again(cuda_torch, monkeypatch):
    def build(_, folder):
        built.append(folder)
        folder.mkdir()

    built: list[Path] = []
    monkeypatch.setattr(libraries, "_build", build)

    assert built_libraries(cuda_torch) == built_libraries(cuda_torch) == built[0]
    (cuda_torch / "version.py").write_text(CUDA_VERSION.replace("2.13.0", "2.13.1"))
    assert built_libraries(cuda_torch) == built[1] != built[0]


def test_the_sources_travel_with_the_package():
    names = {name for own in libraries._OWN_SOURCES.values() for name in own} | {"device.hpp", "stub.hpp"}

    assert {path.name for path in libraries._SOURCES.iterdir()} == names
    patterns = (Path(libraries.__file__).parents[2] / "pyproject.toml").read_text()
    assert '"emulated_gpu/sources/*.?pp"' in patterns


def test_no_torch_is_imported_to_find_it(cuda_torch):
    before = set(sys.modules)
    read_torch(cuda_torch)
    assert not [name for name in set(sys.modules) - before if name.startswith("torch")]
