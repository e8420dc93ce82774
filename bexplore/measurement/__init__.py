"""The seam between the search and the hardware: a probe, its observation, and the statistics of its times."""
