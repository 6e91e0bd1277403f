"""Passes over a network in plain PyTorch: values up, counts down, selections, the M-step."""
