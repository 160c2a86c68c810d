"""Copies tensors: `copies` keeps shared storages, `transfer` moves bytes between devices."""
