"""The posterior of throughput and memory at every size (numpy only)."""
