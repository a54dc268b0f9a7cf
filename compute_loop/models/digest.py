"""A name for a model by the content of its files."""

from __future__ import annotations

from hashlib import file_digest, sha256
from pathlib import Path

from compute_loop.models.files import ModelFiles
from srt.core.errors import ModelError


def digest_model(files: ModelFiles) -> str:
    """A digest over all bytes of the weights and of config.json, where there is one; 1 to 2 GB/s.

    Raises:
        ModelError: a file cannot be read.
    """
    digests = sha256()
    for path in (*files.weight_files, *_config_of(files)):
        try:
            with path.open("rb") as file:
                digests.update(file_digest(file, "sha256").digest())
        except OSError as error:
            raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    return digests.hexdigest()


def _config_of(files: ModelFiles) -> list[Path]:
    config = files.root / "config.json"
    return [config] if config.is_file() else []
