"""Runs the stages of a program, each on a rank of torch.distributed."""
