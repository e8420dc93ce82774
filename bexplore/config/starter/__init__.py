"""Files to start from, which `bexplore init` writes."""
