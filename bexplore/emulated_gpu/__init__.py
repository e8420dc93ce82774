"""A GPU that is emulated: PyTorch's CUDA build reaches one through libraries, and these stand in for NVIDIA's.

The allocator, streams, graphs, the compiler and the distributed wrappers are PyTorch's own. Memory of a device is
counted, never filled; kernels do nothing, so no result and no time of such a device means anything.
"""

from bexplore.emulated_gpu.environment import Faults, emulated_environment
from bexplore.emulated_gpu.libraries import built_libraries, describe_tools

__all__ = ["Faults", "built_libraries", "describe_tools", "emulated_environment"]
