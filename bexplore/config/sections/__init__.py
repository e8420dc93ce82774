"""The sections of `explore:` that need more than a type, and the readers of single values."""
