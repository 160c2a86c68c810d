"""Checkpoints of torch.distributed in files of fxpress, and from one kind to another."""
