"""What a PyTorch that is installed says of itself, read from its files: it is not imported here."""

from __future__ import annotations

import ast
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from bexplore.errors import EmulationError

_INSTALL = (
    "install PyTorch's CUDA build, which needs no GPU: https://pytorch.org/get-started/locally; without it "
    "bexplore trace CONFIG --device-name h100 tells what fits, by the trace"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaTorch:
    """A CUDA build of PyTorch."""

    folder: Path
    version: str  # such as `2.13.0+cu130`
    git_version: str  # revision that it was built from
    cuda: tuple[int, int]  # version of CUDA, (major, minor)
    cudnn: int  # version of cuDNN that it wants, as `cudnnGetVersion` gives it, such as 92000
    nccl: int  # version of NCCL that it wants, as `ncclGetVersion` gives it, such as 22907


def read_torch(folder: Path | None = None) -> CudaTorch:
    """Read which CUDA build a folder holds; by default that of this interpreter."""
    if folder is None:
        spec = importlib.util.find_spec("torch")
        if spec is None or not spec.submodule_search_locations:
            raise EmulationError("an emulated GPU needs PyTorch, which is not installed here", hint=_INSTALL)
        folder = Path(next(iter(spec.submodule_search_locations)))
    try:
        values = _assigned_texts((folder / "version.py").read_text())
        version = values["__version__"]
    except (OSError, SyntaxError, KeyError) as error:
        raise EmulationError(f"{folder} holds no PyTorch that could use an emulated GPU", hint=_INSTALL) from error
    cuda = re.match(r"(\d+)\.(\d+)", values.get("cuda", ""))
    if cuda is None:
        raise EmulationError(f"an emulated GPU needs a CUDA build of PyTorch, and {version} has none", hint=_INSTALL)
    wanted = _wanted_packages(folder)
    return CudaTorch(
        folder=folder,
        version=version,
        git_version=values.get("git_version", ""),
        cuda=(int(cuda[1]), int(cuda[2])),
        cudnn=_number(wanted.get("cudnn", "9.0.0"), (10_000, 100, 1)),
        nccl=_number(wanted.get("nccl", "2.20.0"), (10_000, 100, 1)),
    )


def _assigned_texts(source: str) -> dict[str, str]:
    found = {}
    for node in ast.parse(source).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str):
            found[target.id] = value.value
    return found


def _wanted_packages(folder: Path) -> dict[str, str]:
    """Return the versions of NVIDIA's packages that the wheel requires, by their name without what stands around it."""
    for path in folder.parent.glob("torch-*.dist-info/METADATA"):
        lines = re.findall(r"^Requires-Dist: nvidia-([a-z]+)-cu\d+==([\d.]+)", path.read_text(errors="replace"), re.M)
        return dict(lines)
    return {}


def _number(version: str, weights: tuple[int, ...]) -> int:
    parts = [int(part) for part in version.split(".")]
    return sum(part * weight for part, weight in zip(parts, weights, strict=False))
