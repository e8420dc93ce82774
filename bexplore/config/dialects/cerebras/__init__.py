"""The two layouts of the Cerebras ModelZoo."""
