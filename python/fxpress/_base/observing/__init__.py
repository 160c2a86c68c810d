"""Define events for logs and profiles, report the progress of operations, and format texts."""
