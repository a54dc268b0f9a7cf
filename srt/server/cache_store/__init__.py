"""The prefix cache on disk: one file, written by a helper thread, read before the loops start."""
