"""Checkpoints of torch.distributed in the files of fxpress, and from one kind of file to another."""
