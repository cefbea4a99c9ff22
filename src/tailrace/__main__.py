"""`python -m tailrace`: the command line."""

from tailrace.surfaces.cli import main

main()
