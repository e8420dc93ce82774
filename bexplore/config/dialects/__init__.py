"""Families of configuration files, each in a module or a package of its own."""
