"""Training: epochs of EM or gradient ascent, batches, checkpoints, CUDA graphs."""
