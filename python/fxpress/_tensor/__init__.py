"""Copies of tensors between devices and files."""
