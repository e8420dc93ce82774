"""What must be seen on a GPU, as a list of steps: `python -m benchmarks.gpu_check [--cpu]`.

Each step runs in a process of its own with a time limit, so that a crash or a hang costs one line of the table. What is
found is written after every step, and the same command goes on where it stopped.
"""
