"""Reads and writes checkpoints for torch.distributed, and converts them to other formats."""
