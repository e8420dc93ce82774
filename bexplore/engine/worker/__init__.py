"""The inside of a worker process, and the only part of the engine that imports torch.

The explorer's own process starts it (`python -m bexplore.engine.worker`) and never imports it.
"""
