"""Native kernels, each beside its torch twin with the same signature."""
