"""Events for logs, profiles and torch's profiler; progress of operations; texts for display."""
