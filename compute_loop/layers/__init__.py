"""The operations that a model's program is made of."""
