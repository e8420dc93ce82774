"""`python -m bexplore`."""

from bexplore.cli import main

main()
