"""The fixtures of the product's tests."""

from tests.conftest import own_device_lock, run_on, warm_on

__all__ = ["own_device_lock", "run_on", "warm_on"]
