"""The fixtures of the product's tests."""

from tests.conftest import kept_bytecode, own_device_lock, run_on, warm_on

__all__ = ["kept_bytecode", "own_device_lock", "run_on", "warm_on"]
