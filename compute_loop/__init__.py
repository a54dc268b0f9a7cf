"""The compute thread's room: the running batch and one forward step after another."""
