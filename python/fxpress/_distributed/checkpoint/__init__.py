"""Checkpoints of torch.distributed in files of fxpress, and conversion between their formats."""
