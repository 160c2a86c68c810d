"""Turns programs in files into graphs of Model Explorer, without torch."""
