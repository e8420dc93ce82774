"""The machine: accelerators, memory, other processes, locks, files that are replaced in one step, the log."""
