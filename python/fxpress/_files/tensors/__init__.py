"""Copy the bytes of tensors between devices and files."""
