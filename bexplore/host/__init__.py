"""The machine: accelerators, memory, other processes, locks, and files that are replaced in one step."""
