"""Copies tensors: `copies` copies shared storages once, `transfer` moves bytes between devices."""
