"""How log lines look, in both processes."""

from __future__ import annotations

import logging

from srt.core.config import LogLevel

FORMAT = "%(asctime)s %(levelname).1s %(name)s: %(message)s"
TIME_FORMAT = "%H:%M:%S"

CHATTY = ("uvicorn", "httpx", "huggingface_hub", "filelock", "asyncio")
"""Libraries that say at level info what we say ourselves."""


def configure_logging(level: LogLevel) -> None:
    """Log lines go to stderr; stdout is for answers."""
    logging.basicConfig(level=level.upper(), format=FORMAT, datefmt=TIME_FORMAT, force=True)
    for library in CHATTY:
        logging.getLogger(library).setLevel(max(logging.WARNING, logging.getLevelName(level.upper())))
