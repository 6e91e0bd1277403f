"""What one cell of each experiment does: a file NAME.py with `run(cell, experiment, context)`."""
