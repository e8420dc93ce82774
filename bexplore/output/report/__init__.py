"""The report of a run: one HTML page, Markdown, and figures as files."""
