#!/bin/sh
# Run a module of this repository with a Python that has torch, and nothing else:
#     sh benchmarks/on_gpu.sh benchmarks.gpu_check --minutes 9
#     sh benchmarks/on_gpu.sh benchmarks.engine --cuda --minutes 9
#     sh benchmarks/on_gpu.sh pytest benchmarks/tests/test_gpu_check.py
# What that Python lacks is unpacked from wheels/, which `make gpu-wheels` fills elsewhere. GPU_PYTHON_BIN names another Python.
set -eu
cd "$(dirname "$0")/.."
python=${GPU_PYTHON_BIN:-python3}
# What reads the wheels' names and versions is in one of them, for a Python that lacks it.
packages=$(PYTHONPATH="$PWD:$(echo "$PWD"/wheels/packaging-*.whl)" "$python" -m benchmarks.gpu_packages unpack)
PYTHONPATH="$PWD:$packages${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONPATH
exec "$python" -m "$@"
