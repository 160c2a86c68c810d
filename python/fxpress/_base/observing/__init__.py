"""What operations do, told to whoever watches: logs, profiles, torch's profiler, progress."""
