"""The emulated libraries, compiled once for each PyTorch: own sources, and a stub for every other symbol it wants.

What a PyTorch says of itself is read from its files: it is not imported here.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from bexplore.errors import EmulationError
from bexplore.host.json_files import cache_folder
from bexplore.host.locks import locked

HEADERS_VARIABLE = "BEXPLORE_CUDA_HEADERS"
_TOOLKIT = Path("/usr/local/cuda/include")
_SOURCES = Path(__file__).parent / "sources"
_COMPILERS = ("g++", "c++", "clang++")
_FLAGS = ("-std=c++17", "-O1", "-fPIC", "-fvisibility=hidden", "-w")
_LONGEST_BUILD_S = 300.0  # of another process, before the wait for its lock ends; a build takes some 10 s

# Library -> its sources; the first holds the state of the devices, so the others are linked to it.
_OWN_SOURCES: Mapping[str, tuple[str, ...]] = {
    "libcudart": ("device.cpp", "kernels.cpp", "cudart.cpp"),
    "libcuda": ("driver.cpp",),
    "libnvidia-ml": ("nvml.cpp",),
    "libcublas": ("cublas.cpp",),
    "libcublasLt": ("cublaslt.cpp",),
    "libcudnn": ("cudnn.cpp",),
    "libcufft": ("cufft.cpp",),
    "libcusolver": ("cusolver.cpp",),
    "libcusparse": ("cusparse.cpp",),
    "libnvrtc": ("nvrtc.cpp",),
    "libnccl": ("nccl.cpp",),
}
# Library -> the macro of stub.hpp that makes its stubs; others get the plainest.
_STUBS = {
    "libcublas": "CUBLAS_STUB",
    "libcusolver": "RESULT_STUB",
    "libcusparse": "RESULT_STUB",
    "libcufft": "RESULT_STUB",
}
# Libraries of the driver, which no library of torch names among those that it needs.
_DRIVER_LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
# Beginning of a symbol -> its library. The first that fits is taken.
_LIBRARY_OF_SYMBOL = (
    (r"cusparseLt", "libcusparseLt"),
    (r"cublasLt", "libcublasLt"),
    (r"cublas", "libcublas"),
    (r"cusolverMg", "libcusolverMg"),
    (r"cusolver", "libcusolver"),
    (r"cusparse", "libcusparse"),
    (r"cudnn", "libcudnn"),
    (r"cufft", "libcufft"),
    (r"curand", "libcurand"),
    (r"cupti", "libcupti"),
    (r"nvrtc", "libnvrtc"),
    (r"_*nvJitLink", "libnvJitLink"),
    (r"p?nccl[A-Z]", "libnccl"),
    (r"cuFile", "libcufile"),
    (r"nvshmem", "libnvshmem_host"),
    (r"nvtx", "libnvToolsExt"),
    (r"cuda[A-Z]|__cuda[A-Z]", "libcudart"),
    (r"cu[A-Z]", "libcuda"),
)
_LIBRARIES = frozenset(library for _, library in _LIBRARY_OF_SYMBOL)
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
        values = _read_assigned_texts((folder / "version.py").read_text())
        version = values["__version__"]
    except (OSError, SyntaxError, KeyError) as error:
        raise EmulationError(f"{folder} holds no PyTorch that could use an emulated GPU", hint=_INSTALL) from error
    cuda = re.match(r"(\d+)\.(\d+)", values.get("cuda", ""))
    if cuda is None:
        raise EmulationError(f"an emulated GPU needs a CUDA build of PyTorch, and {version} has none", hint=_INSTALL)
    wanted = _read_wanted_packages(folder)
    return CudaTorch(
        folder=folder,
        version=version,
        git_version=values.get("git_version", ""),
        cuda=(int(cuda[1]), int(cuda[2])),
        cudnn=_number(wanted.get("cudnn", "9.0.0"), (10_000, 100, 1)),
        nccl=_number(wanted.get("nccl", "2.20.0"), (10_000, 100, 1)),
    )


def _read_assigned_texts(source: str) -> dict[str, str]:
    found = {}
    for node in ast.parse(source).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str):
            found[target.id] = value.value
    return found


def _read_wanted_packages(folder: Path) -> dict[str, str]:
    """Return the versions of NVIDIA's packages that the wheel requires, by their name without what stands around it."""
    for path in folder.parent.glob("torch-*.dist-info/METADATA"):
        lines = re.findall(r"^Requires-Dist: nvidia-([a-z]+)-cu\d+==([\d.]+)", path.read_text(errors="replace"), re.M)
        return dict(lines)
    return {}


def _number(version: str, weights: tuple[int, ...]) -> int:
    parts = [int(part) for part in version.split(".")]
    return sum(part * weight for part, weight in zip(parts, weights, strict=False))


@dataclass(slots=True)
class _Wanted:
    """What the libraries of a PyTorch want of NVIDIA's."""

    # Library without its suffix -> the name by which it is loaded
    sonames: dict[str, str] = field(default_factory=dict)
    symbols: dict[str, set[str]] = field(default_factory=dict)  # library -> symbols
    # Library -> version of its symbols; absent where they have none
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tools:
    compiler: str
    nm: str
    readelf: str
    headers: Path


def built_libraries(torch_folder: Path | None = None) -> Path:
    """Return the folder of the emulated libraries for a PyTorch, built where they are not there yet."""
    torch = read_torch(torch_folder)
    try:
        parent = cache_folder("emulated_gpu")
        parent.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:
        raise EmulationError(
            f"no folder for the libraries of an emulated GPU: {error}", hint="set XDG_CACHE_HOME to one"
        ) from error
    folder = parent / f"{torch.version}-{_digest(torch)}"
    if folder.is_dir():
        return folder
    with locked(parent / ".lock", wait_s=_LONGEST_BUILD_S):
        if not folder.is_dir():  # another process may have built it meanwhile
            _build(torch, folder)
    return folder


def describe_tools(torch_folder: Path | None = None) -> str:
    """Return what the libraries are built for and with, in words; nothing is built."""
    torch = read_torch(torch_folder)
    tools = _find_tools(torch)
    return f"torch {torch.version}, {tools.compiler}, headers in {tools.headers}"


def _digest(torch: CudaTorch) -> str:
    digest = hashlib.sha256(repr(torch).encode())
    for path in (Path(__file__), *sorted(_SOURCES.iterdir())):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _build(torch: CudaTorch, folder: Path) -> None:
    tools = _find_tools(torch)
    with tempfile.TemporaryDirectory(prefix=".build-", dir=folder.parent) as scratch_name:
        scratch = Path(scratch_name)
        finished = scratch / "lib"
        finished.mkdir()
        with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
            wanted = _read_wanted(torch, tools, pool)
            own = [name for library in _OWN_SOURCES for name in _OWN_SOURCES[library]]
            for _ in pool.map(lambda name: _compile(_SOURCES / name, scratch, tools, torch), own):
                pass
            _link("libcudart", wanted, scratch, finished, tools, torch)  # the others are linked to it
            rest = [library for library in wanted.sonames if library != "libcudart"]
            for _ in pool.map(lambda library: _link(library, wanted, scratch, finished, tools, torch), rest):
                pass
        finished.replace(folder)


def _find_tools(torch: CudaTorch) -> _Tools:
    compiler = next((path for name in _COMPILERS if (path := shutil.which(name))), None)
    if compiler is None:
        raise EmulationError(
            "no C++ compiler is here to build the libraries of an emulated GPU", hint="install g++: apt install g++"
        )
    return _Tools(compiler=compiler, nm=_find_tool("nm"), readelf=_find_tool("readelf"), headers=_find_headers(torch))


def _find_tool(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise EmulationError(
            f"{name}, which reads what PyTorch wants of CUDA's libraries, is missing",
            hint="install binutils: apt install binutils",
        )
    return path


def _find_headers(torch: CudaTorch) -> Path:
    """Return the folder of NVIDIA's headers: given, beside torch, Triton's own, or of an installed toolkit."""
    beside = torch.folder.parent
    folders = [
        *(Path(os.environ[HEADERS_VARIABLE]) for _ in range(1) if os.environ.get(HEADERS_VARIABLE)),
        beside / "nvidia" / f"cu{torch.cuda[0]}" / "include",
        beside / "nvidia" / "cuda_runtime" / "include",
        beside / "triton" / "backends" / "nvidia" / "include",
        *(Path(os.environ[name], "include") for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)),
        _TOOLKIT,
    ]
    for folder in folders:
        if _read_cuda_major(folder) == torch.cuda[0]:
            return folder
    major = torch.cuda[0]
    raise EmulationError(
        f"the headers of CUDA {major} (cuda.h, cuda_runtime_api.h, crt/host_defines.h) are in none of "
        f"{', '.join(str(folder) for folder in folders)}",
        hint=f"install PyTorch's own triton, or the toolkit of CUDA {major}, or set {HEADERS_VARIABLE} to their folder",
    )


def _read_cuda_major(folder: Path) -> int | None:
    """Return the major version of the headers in a folder; None where some are missing."""
    try:
        if not (folder / "cuda_runtime_api.h").is_file() or not (folder / "crt" / "host_defines.h").is_file():
            return None
        found = re.search(r"^#define CUDA_VERSION (\d+)", (folder / "cuda.h").read_text(errors="replace"), re.M)
    except OSError:
        return None
    return int(found[1]) // 1000 if found else None


def _read_wanted(torch: CudaTorch, tools: _Tools, pool: ThreadPoolExecutor) -> _Wanted:
    """Read from the libraries of a PyTorch which libraries and symbols of CUDA they want."""
    paths = sorted(path for path in (torch.folder / "lib").glob("*.so*") if path.is_file())
    wanted = _Wanted()
    texts = pool.map(lambda path: _run([tools.readelf, "--wide", "--dynamic", "--dyn-syms", str(path)]), paths)
    for text in texts:
        for soname in re.findall(r"\(NEEDED\).*\[(.+)\]", text):
            _add_soname(wanted, soname)
        for symbol, version in re.findall(r" UND (\w+)(?:@+([\w.]+))?", text):
            _add_symbol(wanted, symbol, version)
    for soname in _DRIVER_LIBRARIES:
        _add_soname(wanted, soname)
    if "libcudart" not in wanted.sonames:
        raise EmulationError(
            f"the PyTorch in {torch.folder} holds CUDA's libraries within its own, so no other can stand in for them",
            hint="install PyTorch from its wheels: https://pytorch.org/get-started/locally",
        )
    return wanted


def _add_soname(wanted: _Wanted, soname: str) -> None:
    library = soname.partition(".so")[0]
    if library in _LIBRARIES or soname in _DRIVER_LIBRARIES:
        wanted.sonames[library] = soname


def _add_symbol(wanted: _Wanted, symbol: str, version: str) -> None:
    library = next((library for beginning, library in _LIBRARY_OF_SYMBOL if re.match(beginning, symbol)), None)
    if library is not None:
        wanted.symbols.setdefault(library, set()).add(symbol)
        if version:
            wanted.versions[library] = version


def _compile(source: Path, scratch: Path, tools: _Tools, torch: CudaTorch) -> None:
    versions = {"CUDA": torch.cuda[0] * 1000 + torch.cuda[1] * 10, "CUDNN": torch.cudnn, "NCCL": torch.nccl}
    defined = [f"-DBEXPLORE_{name}_VERSION={number}" for name, number in versions.items()]
    folders = [f"-I{_SOURCES}", f"-I{tools.headers}"]
    _run(
        [
            tools.compiler,
            *_FLAGS,
            *defined,
            *folders,
            "-c",
            str(source),
            "-o",
            str(_name_object(source.name, scratch)),
        ]
    )


def _name_object(source_name: str, scratch: Path) -> Path:
    return scratch / f"{source_name}.o"


def _link(library: str, wanted: _Wanted, scratch: Path, finished: Path, tools: _Tools, torch: CudaTorch) -> None:
    """Link one library of its own objects and of stubs for the wanted symbols that they do not define."""
    objects = [_name_object(name, scratch) for name in _OWN_SOURCES.get(library, ())]
    defined = set(re.findall(r" [TDBVW] (\w+)", "".join(_run([tools.nm, str(path)]) for path in objects)))
    stubs = scratch / f"{library}.stubs.cpp"
    stubs.write_text(_make_stub_source(library, wanted.symbols.get(library, set()) - defined))
    _compile(stubs, scratch, tools, torch)
    soname = wanted.sonames[library]
    command = [tools.compiler, "-shared", "-o", str(finished / soname), f"-Wl,-soname,{soname}"]
    command += [str(path) for path in (*objects, _name_object(stubs.name, scratch))]
    if library in wanted.versions:
        script = scratch / f"{library}.map"
        script.write_text(f"{wanted.versions[library]} {{ global: *; }};\n")
        command.append(f"-Wl,--version-script,{script}")
    if library != "libcudart":
        command += [f"-L{finished}", f"-l:{wanted.sonames['libcudart']}", "-Wl,-rpath,$ORIGIN"]
    command += ["-ldl", "-lpthread", "-lrt"]
    # Without the compiler's own library the result also runs where Python brings an older one, as conda's does.
    contained = ["-static-libstdc++", "-static-libgcc", "-Wl,--exclude-libs,ALL"]
    try:
        _run([*command, *contained])
    except EmulationError:  # not every distribution installs the archives with its compiler
        _run(command)


def _make_stub_source(library: str, symbols: set[str]) -> str:
    macro = _STUBS.get(library, "STUB")
    functions = "".join(f"{macro}({symbol})\n" for symbol in sorted(symbols))
    return f'#include "stub.hpp"\n\n{functions}'


def _run(command: list[str]) -> str:
    result = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    if result.returncode:
        tool = Path(command[0]).name
        raise EmulationError(
            f"{tool} could not build the libraries of an emulated GPU: {result.stderr.strip()[-600:]}",
            hint=f"see whether this works by hand: {' '.join(command)}",
        )
    return result.stdout
