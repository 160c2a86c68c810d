"""Observe operations: events for logs, profiles and torch's profiler; progress."""
