"""Model families, their configuration and the loading of weights."""
