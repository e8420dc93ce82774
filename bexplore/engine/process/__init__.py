"""Worker processes: start, watch, reuse, end."""
