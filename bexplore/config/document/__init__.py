"""One YAML file: its values, the line of each, and one number replaced with every other byte kept."""
