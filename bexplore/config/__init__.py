"""A training job's YAML file -> `Config`."""
