"""How log lines look, in both processes."""

from __future__ import annotations

import logging

from srt.core.config import LogLevel

FORMAT = "%(asctime)s %(levelname).1s %(name)s: %(message)s"
TIME_FORMAT = "%H:%M:%S"


def configure_logging(level: LogLevel) -> None:
    """Log lines go to stderr; stdout is for answers."""
    logging.basicConfig(level=level.upper(), format=FORMAT, datefmt=TIME_FORMAT, force=True)
    # Access lines would be one for every request: --log-requests says more.
    logging.getLogger("uvicorn.access").setLevel(logging.WARNING)
    logging.getLogger("httpx").setLevel(logging.WARNING)
