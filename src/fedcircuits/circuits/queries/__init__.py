"""One query a file, over the two shared passes."""
