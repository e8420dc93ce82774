"""What to probe next, and when to stop."""
