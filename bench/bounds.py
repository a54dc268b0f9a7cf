"""Numbers on a bench's command line."""

from __future__ import annotations

from srt.core.errors import ConfigError


def check_bounds(name: str, value: int, least: int, most: int | None = None) -> None:
    """Raises:
    ConfigError: names the option ``--name``, its value and what is allowed.
    """
    if value < least or (most is not None and value > most):
        allowed = f"at least {least}" if most is None else f"from {least} to {most}"
        raise ConfigError(f"--{name} is {value}, it must be {allowed}")
