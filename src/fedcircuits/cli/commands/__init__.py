"""The commands with their options and help; each runs a module of its own."""
