"""Fetching a model from the Hugging Face hub, or from its local cache where there is no network."""

from __future__ import annotations

import re
from pathlib import Path

import huggingface_hub

from srt.core.errors import ModelError

WANTED = ("*.safetensors", "*.json", "*.jinja", "merges.txt", "vocab.txt", "tokenizer.model")
"""What a server needs of a repository."""

UNWANTED = ("consolidated*", "*/*")
"""The same weights in another format, and exports to other runtimes in subdirectories."""

_HUB_ID = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(?:/(?P<file>[^/]+\.gguf))?")


def fetch_from_hub(model: str, revision: str | None) -> Path:
    """Downloads `model` (with a progress bar) or finds it in the cache.

    Args:
        model: ``owner/name``, or ``owner/name/file.gguf`` for one file of a repository.
        revision: branch, tag or commit; default: the repository's main branch.

    Returns:
        The directory of the snapshot, or the one file.

    Raises:
        ModelError: says what was tried and what to do.
    """
    match = _HUB_ID.fullmatch(model)
    if match is None:
        raise ModelError(
            f"{model!r} is no file or directory here and no hub id (owner/name); check the spelling of the path"
        )
    # Whatever the library raises (no network, no such repository, a gated one, a full disk), the operator needs the
    # same three facts: what was tried, what came back, what else can be done.
    try:
        if match["file"]:
            return Path(
                huggingface_hub.hf_hub_download(match["repository"], match["file"], revision=revision)
            )
        return Path(
            huggingface_hub.snapshot_download(
                match["repository"],
                revision=revision,
                allow_patterns=list(WANTED),
                ignore_patterns=list(UNWANTED),
            )
        )
    except Exception as error:
        at = f" at revision {revision!r}" if revision else ""
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ModelError(
            f"{model!r}{at} is no file or directory here, and it could not be fetched from the hub nor found in "
            f"its local cache: {reason} -- Check the name and the network (HF_TOKEN for gated models), or copy the "
            f"model's directory to this machine and give its path."
        ) from error
