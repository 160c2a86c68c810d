"""The copying of tensors: many at a time, between devices and files."""
