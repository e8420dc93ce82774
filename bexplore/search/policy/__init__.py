"""The choice of the next probe, and of the end of a search."""
