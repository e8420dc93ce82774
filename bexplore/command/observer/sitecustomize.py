"""Load the observer in a Python process of a probe, once torch has been executed.

Python's `site` imports this file because its folder stands first on PYTHONPATH. It imports nothing that Python's own
start has not imported: a process that never imports torch pays for one finder. Python 3.8 and newer.
"""

import os
import sys

TYPE_CHECKING = False  # of `typing`, which Python's own start does not import
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


class _TorchFinder:
    """Find `torch` for the import system, and call the observer once its module has been executed."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """Return the spec of torch, whose loader then calls the observer; None for any other module."""
        if name != "torch":
            return None
        for finder in list(sys.meta_path):
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None and hasattr(spec.loader, "exec_module"):
                self._wrap(spec.loader)
                self._note()
                return spec
        return None

    def _note(self) -> None:
        """Write that the observer will be loaded here, long before torch has been executed."""
        try:
            name = f"importing-{os.uname().nodename}-{os.getpid()}"
            os.close(os.open(os.path.join(self.folder, name), os.O_CREAT | os.O_WRONLY, 0o644))
        except OSError:  # the explorer has gone, and its folder with it
            pass

    def _wrap(self, loader: "Any") -> None:
        execute = loader.exec_module

        def exec_module(module: "ModuleType") -> None:
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            loader.exec_module = execute
            execute(module)  # its exceptions are the user's
            _observe(self.folder, module)

        loader.exec_module = exec_module


def _observe(folder: str, torch: "ModuleType") -> None:
    try:
        from importlib.util import module_from_spec, spec_from_file_location  # torch has imported it

        package = os.path.join(folder, "bexplore_observer")
        path = os.path.join(package, "__init__.py")
        spec = spec_from_file_location("bexplore_observer", path, submodule_search_locations=[package])
        assert spec is not None and spec.loader is not None
        module = module_from_spec(spec)
        sys.modules["bexplore_observer"] = module  # its own modules are found by its place alone
        spec.loader.exec_module(module)
        module.install(folder, torch)
    except Exception as error:  # the training goes on whatever happens here
        print(f"bexplore: the training is not observed: {error!r}", file=sys.stderr)


def _switch_trackers_off(folder: str) -> None:
    """Set the variables that a launcher of several hosts has not carried here."""
    try:
        with open(os.path.join(folder, "environment"), encoding="utf-8") as stream:
            for line in stream:
                name, _, value = line.rstrip("\n").partition("=")
                os.environ[name] = value
    except OSError:  # the explorer has gone, and its folder with it
        pass


def _watch_host(folder: str) -> None:
    """Begin what ends the start on this host when the explorer is gone: once on each, but for the explorer's own."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as stream:
            place = stream.read().strip() + os.readlink("/proc/self/ns/pid")
        with open(os.path.join(folder, "place")) as stream:
            if stream.read() == place:
                return
        os.close(os.open(os.path.join(folder, f"watched-{place}"), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        words = [
            sys.executable,
            "-I",
            "-S",
            os.path.join(folder, "bexplore_process_tree.py"),
            "host",
            os.path.dirname(folder),
        ]
        os.waitpid(os.posix_spawn(sys.executable, words, os.environ), 0)  # it goes on as an orphan
    except Exception:  # it has begun already, or the host has no /proc: ranks leave by themselves after their steps
        pass


def _start() -> None:
    folder = os.path.dirname(os.path.abspath(__file__))
    _switch_trackers_off(folder)
    _watch_host(folder)
    names = [type(finder).__name__ for finder in sys.meta_path]
    if "_TorchFinder" not in names:  # the .pth file may have been first
        sys.meta_path.insert(0, _TorchFinder(folder))
    if __name__ == "sitecustomize":
        _import_next(folder)


def _import_next(folder: str) -> None:
    """Import the sitecustomize that Python would have found without this one."""
    own = sys.modules.pop("sitecustomize", None)
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != folder]
    try:
        import sitecustomize  # noqa: F401 - the user's own, for its effects
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        if own is not None:
            sys.modules.setdefault("sitecustomize", own)


_start()
