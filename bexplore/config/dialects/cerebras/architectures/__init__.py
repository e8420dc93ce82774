"""Models of the ModelZoo, each as a table of its keys."""
