"""What goes wrong in a tree because of its caller."""

from __future__ import annotations


class TreeStateError(RuntimeError):
    """The tree's state forbids the operation: a wrong call of the control loop, never of a client."""
