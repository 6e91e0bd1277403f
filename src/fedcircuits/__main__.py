"""`python -m fedcircuits` is the command line."""

from fedcircuits.cli import main

main()
