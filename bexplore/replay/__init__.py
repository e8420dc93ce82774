"""A `Runner` whose hardware is a CSV file of recorded sweeps."""
