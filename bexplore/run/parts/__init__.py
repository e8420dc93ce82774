"""The parts of a result: each computes itself from the facts of a run, and has its rows for people."""
