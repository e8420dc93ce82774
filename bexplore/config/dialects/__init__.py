"""Families of configuration files."""
