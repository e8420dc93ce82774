"""The implementation of `Runner` that touches hardware: a worker process that compiles one size and runs it for real.

What runs inside a worker is in `worker/`, and only that imports torch; the explorer's own process stays without it.
"""
