"""Copy tensors, many at a time, between devices and files."""
