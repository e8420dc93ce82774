# The two commands that matter: `make explore` and `make test`. Each does all the set-up that it needs, in .venv here.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
GPU_TRACE_STAMP := $(VENV)/.installed-gpu-trace
# The oldest numpy that pyproject.toml allows, in an environment of its own over $(VENV).
NUMPY_VENV := .venv-numpy
NUMPY_STAMP := $(NUMPY_VENV)/.installed
BENCH_STAMP := $(VENV)/.installed-bench
# The frameworks that are started as commands: in an environment of their own over $(VENV), whose torch it shares.
COMMAND_VENV := .venv-command
COMMAND_STAMP := $(COMMAND_VENV)/.installed
# As many processes as the tests get use the processors already: threads of torch and numpy beside them only wait.
WORKERS ?= 2
PYTEST := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS)
# What `make test` leaves to `make test-rest`: programs of others, statistics, and the tests of the benchmarks.
REST := external or statistics or benchmark
# The CUDA build of a PyTorch and its Triton alone: emulated libraries stand in for NVIDIA's.
TORCH ?= 2.13.0
CUDA_FOLDER := .cuda/$(TORCH)
CUDA_STAMP := $(CUDA_FOLDER)/.installed
# That PyTorch in an environment of its own over $(VENV).
TORCH_VENV := .venv-torch/$(TORCH)
TORCH_STAMP := $(TORCH_VENV)/.installed
CONFIG ?= configs/quickstart.yaml
ARGS ?=
# A machine with a GPU: the Python there that has torch, and its version for the wheels that are collected here.
GPU_PYTHON_BIN ?= python3
GPU_PYTHON ?= 3.12

.PHONY: help setup explore test test-all test-rest test-fast test-gpu-trace test-oldest-numpy test-gpu test-torch device-lines check docs guard gpu-wheels gpu-check bench bench-gpu bench-all bench-search fit-calibration bench-trace bench-trace-cuda bench-guard bench-faults bench-command bench-emulated clean dist
help:
	@echo "make setup         install everything into $(VENV)"
	@echo "make explore       find the micro-batch size of CONFIG=$(CONFIG)"
	@echo "make test          run the tests; ARGS='-k name' picks some"
	@echo "make test-fast     run the tests that need neither torch nor a worker: half a minute"
	@echo "make test-ROOM     run the tests of one room: test-search, test-engine, test-command, test-cli, ..."
	@echo "make test-rest     run what make test leaves out: Slurm, Ray, PostgreSQL, type checkers, statistics, benchmarks"
	@echo "make test-all      run make test and make test-rest"
	@echo "make test-gpu-trace  the tests on a GPU that is not there: they need Triton, 190 MB"
	@echo "make test-oldest-numpy  the unit tests with numpy 1.26"
	@echo "make test-gpu      the tests on an emulated GPU, under the CUDA build of torch $(TORCH): it is fetched, 700 MB"
	@echo "make device-lines  those tests, and which product lines that ask for a device's kind they run"
	@echo "make test-torch    the tests under the CUDA build of TORCH=$(TORCH), without a device; ARGS='-k name' picks some"
	@echo "make check         lint, format and types"
	@echo "make docs          write the generated parts of README.md and docs/"
	@echo "make guard         compare the exact facts of a tiny job with their committed baseline"
	@echo "make bench         the engine beside sweeps and other finders; ARGS=--quick in less than ten minutes"
	@echo "make gpu-wheels    collect in wheels/ what a machine without a package registry lacks, for Python GPU_PYTHON=$(GPU_PYTHON)"
	@echo "make gpu-check     what must be seen on a GPU, in 9 minutes a call, with GPU_PYTHON_BIN=$(GPU_PYTHON_BIN); ARGS=--cpu or --emulated to exercise it"
	@echo "make bench-gpu     make bench on a CUDA device, with GPU_PYTHON_BIN; ARGS=--cpu to exercise it"
	@echo "make bench-search  the search, replayed and simulated"
	@echo "make fit-calibration  what the confidence score is worth, fitted anew"
	@echo "make bench-trace   the trace against the allocator"
	@echo "make bench-trace-cuda  the trace for a CUDA device that is not there"
	@echo "make bench-guard   the guard: false alarms, misses, planted changes"
	@echo "make bench-faults  probes that die, explorers that are killed, inputs that are wrong"
	@echo "make bench-command  training commands of many frameworks under the observer"
	@echo "make bench-emulated trainings of many frameworks on an emulated GPU; ARGS=--cost times their start"
	@echo "make bench-all     all of these but bench-gpu, ARGS=--quick for short ones"
	@echo "make dist          build the wheel"
	@echo "make clean         remove $(VENV) and everything that was built"

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "bexplore needs Python 3.11 or newer: make PYTHON=python3.12 setup")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

explore: $(STAMP)
	$(BIN)/bexplore explore $(CONFIG) $(ARGS)

test: $(STAMP)
	$(PYTEST) --dist worksteal -m 'not gpu_trace and not ($(REST))' $(ARGS)

test-rest: $(STAMP)
	$(PYTEST) --dist worksteal -m 'not gpu_trace and ($(REST))' $(ARGS)

test-all: test test-rest

test-fast: $(STAMP)
	$(PYTEST) --dist worksteal -m 'not gpu_trace and not ($(REST))' tests/unit tests/rules $(ARGS)

# The tests of one room: its folders, and the files elsewhere that have its name.
test-%: $(STAMP)
	$(PYTEST) --dist worksteal -m 'not gpu_trace and not ($(REST))' \
		$(or $(wildcard tests/unit/$* tests/torch/$* tests/$* tests/*/test_$*.py tests/*/test_$*_*.py),$(error no tests of $*: see tests/unit)) $(ARGS)

# Triton is large, and only the tests of GPU programs need it.
$(GPU_TRACE_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,gpu-trace]'
	touch $(GPU_TRACE_STAMP)

test-gpu-trace: $(GPU_TRACE_STAMP)
	$(PYTEST) -m gpu_trace $(ARGS)

$(NUMPY_STAMP): $(STAMP)
	test -x $(NUMPY_VENV)/bin/python || $(BIN)/python -m venv $(NUMPY_VENV)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' > "$$($(NUMPY_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/shared.pth"
	$(NUMPY_VENV)/bin/python -m pip install --quiet --no-deps 'numpy==1.26.*'
	touch $(NUMPY_STAMP)

test-oldest-numpy: $(NUMPY_STAMP)
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(NUMPY_VENV)/bin/python -m pytest -n 2 --dist worksteal -m 'not statistics' tests/unit $(ARGS)

# The machine's own constraints and wheels may hold the CPU build of the same version.
$(CUDA_STAMP): $(STAMP)
	PIP_CONSTRAINT=/dev/null PIP_FIND_LINKS= $(BIN)/python -m pip install --quiet --no-deps --only-binary=:all: --upgrade --target $(CUDA_FOLDER) 'torch===$(TORCH)'
	PIP_CONSTRAINT=/dev/null PIP_FIND_LINKS= $(BIN)/python -m pip install --quiet --no-deps --only-binary=:all: --upgrade --target $(CUDA_FOLDER) \
		"$$(sed -n 's/^Requires-Dist: \(triton[^;]*\).*/\1/p' $(CUDA_FOLDER)/torch-*.dist-info/METADATA | head -n 1)"
	touch $(CUDA_STAMP)

test-gpu: $(CUDA_STAMP)
	BEXPLORE_CUDA_TORCH=$(CURDIR)/$(CUDA_FOLDER) $(PYTEST) tests/emulated_gpu $(ARGS)
	BEXPLORE_CUDA_TORCH=$(CURDIR)/$(CUDA_FOLDER) $(BIN)/python -m tests.emulated_gpu.on_device -n 2 -m on_device tests/engine tests/cli $(ARGS)

# Which product lines that ask for the kind of a device those tests run.
device-lines: $(CUDA_STAMP)
	$(BIN)/python -m benchmarks.device_lines $(MAKE) test-gpu

# A .pth file and not PYTHONPATH: the tests start programs with paths of their own. Lines of it that import are run.
$(TORCH_STAMP): $(CUDA_STAMP)
	test -x $(TORCH_VENV)/bin/python || $(BIN)/python -m venv --without-pip $(TORCH_VENV)
	$(BIN)/python -c 'import sysconfig; print("$(CURDIR)/$(CUDA_FOLDER)"); print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
		> "$$($(TORCH_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch_and_shared.pth"
	touch $(TORCH_STAMP)

# PyTorch finds the libraries where NVIDIA's packages would put them, and sees no device there.
test-torch: $(TORCH_STAMP)
	mkdir -p $(CUDA_FOLDER)/nvidia/cu13/lib
	ln -sf "$$($(TORCH_VENV)/bin/python -c 'from bexplore.emulated_gpu import built_libraries; print(built_libraries())')"/* $(CUDA_FOLDER)/nvidia/cu13/lib
	OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(TORCH_VENV)/bin/python -m pytest -n 2 --dist worksteal tests/unit tests/torch tests/engine tests/cli $(ARGS)

# No cache: ruff sorts an import by whether its module is there, and keeps the verdict of a file made before its module.
check: $(STAMP)
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --no-cache --check .
	$(BIN)/mypy

docs: $(STAMP)
	$(BIN)/python -m benchmarks.readme

guard: $(STAMP)
	$(BIN)/bexplore guard configs/guard_tiny.yaml --baseline configs/guard_tiny.json --facts portable $(ARGS)

# The finders that the engine stands beside are the benchmark's alone.
$(BENCH_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,bench]'
	touch $(BENCH_STAMP)

bench: $(BENCH_STAMP)
	$(BIN)/python -m benchmarks.engine $(ARGS)

# A machine with a GPU has a Python with torch, and perhaps no registry: no virtual environment is made there.
gpu-wheels: $(STAMP)
	$(BIN)/python -m benchmarks.gpu_packages fill --python-version $(GPU_PYTHON)

gpu-check:
	GPU_PYTHON_BIN=$(GPU_PYTHON_BIN) sh benchmarks/on_gpu.sh benchmarks.gpu_check $(ARGS)

bench-gpu:
	GPU_PYTHON_BIN=$(GPU_PYTHON_BIN) sh benchmarks/on_gpu.sh benchmarks.engine --cuda $(ARGS)

bench-all: bench bench-search bench-trace bench-guard bench-faults

bench-search: $(BENCH_STAMP)
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.search $(ARGS)

fit-calibration: $(BENCH_STAMP)
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.fit_calibration $(ARGS)

bench-trace: $(STAMP)
	$(BIN)/python -m benchmarks.trace $(ARGS)

bench-trace-cuda: $(GPU_TRACE_STAMP)
	$(BIN)/python -m benchmarks.trace_cuda $(ARGS)

bench-guard: $(STAMP)
	$(BIN)/python -m benchmarks.guard $(ARGS)

bench-faults: $(STAMP)
	$(BIN)/python -m benchmarks.faults $(ARGS)

$(COMMAND_STAMP): $(STAMP) benchmarks/command_jobs/requirements.txt
	test -x $(COMMAND_VENV)/bin/python || $(BIN)/python -m venv $(COMMAND_VENV)
	$(BIN)/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' > "$$($(COMMAND_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/shared.pth"
	$(COMMAND_VENV)/bin/python -m pip install --quiet --no-deps --requirement benchmarks/command_jobs/requirements.txt
	$(COMMAND_VENV)/bin/python -m pip install --quiet --no-deps --upgrade --target $(COMMAND_VENV)/timm timm==1.0.31
	touch $(COMMAND_STAMP)

bench-command: $(COMMAND_STAMP)
	$(BIN)/python -m benchmarks.command --unmodified $(ARGS)

bench-emulated: $(COMMAND_STAMP) $(CUDA_STAMP)
	BEXPLORE_CUDA_TORCH=$(CURDIR)/$(CUDA_FOLDER) $(BIN)/python -m benchmarks.emulated_trainings $(ARGS)

dist: $(STAMP)
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

clean:
	rm -rf $(VENV) $(COMMAND_VENV) $(NUMPY_VENV) .venv-torch .cuda wheels .gpu_packages build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
