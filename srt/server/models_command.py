"""`twinloop models`: which model families and files can be served, where the default model is, facts of one model."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Sequence

from compute_loop.models.config import ModelConfig, load_model_config
from compute_loop.models.files import DEFAULT_MODEL, ModelFiles, locate_model
from compute_loop.models.gguf_config import GGUF_ARCHITECTURES
from compute_loop.models.gguf_file import GGML_TYPES
from compute_loop.models.registry import BUILDERS, build_program
from srt.core.errors import ModelError


def main(arguments: Sequence[str]) -> int:
    """Prints the list, or the facts of one model.

    Raises:
        ModelError: the named model cannot be served; says why.
    """
    parser = argparse.ArgumentParser(
        prog="twinloop models", description="List what can be served, or say whether one model can."
    )
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="a GGUF file, a Hugging Face directory or a hub id: read its configuration and print its facts",
    )
    parser.add_argument("--revision", metavar="REV", help="hub revision to look at")
    options = parser.parse_args(arguments)
    if options.model is not None:
        print("\n".join(facts_of(options.model, options.revision)))
        return 0
    print("\n".join([*family_lines(), "", *format_lines(), "", *default_lines()]))
    return 0


def family_lines() -> list[str]:
    """One line for each architecture of the registry, from the first line of its file."""
    lines = ["families (the architecture that a model's configuration names):"]
    for architecture, builder in BUILDERS.items():
        about = (inspect.getdoc(inspect.getmodule(builder)) or "").partition("\n")[0]
        lines.append(f"  {architecture:<20}{about.partition(':')[0].rstrip('.')}")
    return lines


def format_lines() -> list[str]:
    return [
        "files:",
        "  directory           config.json, tokenizer.json and *.safetensors in 16 or 32 bits, sharded or not",
        f"  GGUF file           architectures {', '.join(GGUF_ARCHITECTURES)};",
        f"                      tensors {', '.join(kind.name for kind in GGML_TYPES.values())}",
        "  hub id              owner/name or owner/name/file.gguf, fetched once, then from the cache",
    ]


def default_lines() -> list[str]:
    """The default model with its place, or what to do to get it."""
    heading = "default model:"
    try:
        return [heading, *(f"  {line}" for line in facts_of(DEFAULT_MODEL, None))]
    except ModelError as error:
        return [heading, f"  {error.message}"]


def facts_of(model: str, revision: str | None) -> list[str]:
    """Name, place, architecture and sizes of a model, none of its weights read.

    Raises:
        ModelError: it is not there, it is broken, or no family describes it.
    """
    files = locate_model(model, revision)
    config = load_model_config(files)
    build_program(config)
    return [
        f"{'name':<20}{files.name}",
        f"{'place':<20}{place_of(files)}",
        f"{'architecture':<20}{config.architecture}, {config.num_layers} layers, hidden size {config.hidden_size}",
        f"{'attention':<20}{attention_of(config)}",
        f"{'vocabulary':<20}{config.vocab_size} tokens",
        f"{'context':<20}{config.max_position_embeddings} tokens",
    ]


def place_of(files: ModelFiles) -> str:
    megabytes = sum(path.stat().st_size for path in files.weight_files) / 1e6
    where = files.weight_files[0] if len(files.weight_files) == 1 else files.root
    shards = f" in {len(files.weight_files)} files" if len(files.weight_files) > 1 else ""
    return f"{where} ({megabytes:.0f} MB{shards})"


def attention_of(config: ModelConfig) -> str:
    window = f", sliding window of {config.sliding_window} tokens" if config.sliding_window else ""
    return f"{config.num_heads} heads over {config.num_kv_heads} of keys and values, {config.head_dim} wide{window}"
