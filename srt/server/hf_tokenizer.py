"""The tokenizer of a Hugging Face model directory: ``tokenizer.json`` and the files beside it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from compute_loop.models.config_reader import ConfigReader
from srt.core.errors import ModelError
from srt.server.tokenizer_spec import DEFAULT_TEMPLATE, TokenizerSpec, add_tokens

_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_LISTED = ("additional_special_tokens", "extra_special_tokens")


def read_hf_tokenizer(root: Path) -> TokenizerSpec:
    """The tokenizer in a model directory.

    ``tokenizer.json`` is taken as it stands, and alone decides about BOS and EOS, as in transformers.
    ``tokenizer_config.json`` (and ``special_tokens_map.json`` of older models) may name special tokens, add tokens, and
    hold the chat template, which a ``chat_template.jinja`` overrides. Its ``clean_up_tokenization_spaces`` is not
    followed: it deletes spaces that the model wrote.

    Raises:
        ModelError: a file is missing or broken; names the file and the key.
    """
    backend = _read_backend(root / "tokenizer.json")
    config = _read_json(root / "tokenizer_config.json")
    names = ConfigReader(
        config.path, {**_read_json(root / "special_tokens_map.json").values, **config.values}
    )
    add_tokens(backend, _declared_tokens(config, backend), str(config.path))
    special_tokens = {name: text for name in _NAMED if (text := _token_text(names, name)) is not None}
    _mark_special(backend, [*special_tokens.values(), *_listed_tokens(names)])
    bos_id = backend.token_to_id(special_tokens["bos_token"]) if "bos_token" in special_tokens else None
    eos_id = backend.token_to_id(special_tokens["eos_token"]) if "eos_token" in special_tokens else None
    return TokenizerSpec(
        source=str(root),
        backend=backend,
        bos_id=bos_id,
        eos_ids=_eos_ids(root, eos_id),
        special_tokens=special_tokens,
        chat_templates=_chat_templates(root, config),
    )


def _read_backend(path: Path) -> Backend:
    if not path.is_file():
        raise ModelError(
            f"{path.parent}: has no tokenizer.json; if it has another kind of tokenizer file, make one with "
            f"AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR) of the transformers package"
        )
    try:
        backend = Backend.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"{path}: is not a readable tokenizer: {error}") from error
    # Some files keep the limits that their makers once trained with.
    backend.no_truncation()
    backend.no_padding()
    return backend


def _read_json(path: Path) -> ConfigReader:
    if not path.is_file():
        return ConfigReader(path, {})
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path}: is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ModelError(f"{path}: should hold an object, holds {type(values).__name__}")
    return ConfigReader(path, values)


def _token_text(reader: ConfigReader, name: str) -> str | None:
    """A special token is written as a string or as an object with a "content"."""
    value = reader.values.get(name)
    if isinstance(value, dict):
        value = value.get("content")
    if value is not None and not isinstance(value, str):
        raise reader.error(name, "a string or an object with a content")
    return value


def _listed_tokens(reader: ConfigReader) -> list[str]:
    """Further special tokens; some files write the list as a string, or as names with tokens."""
    found: list[str] = []
    for key in _LISTED:
        value = reader.values.get(key)
        items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        for item in items:
            text = item.get("content") if isinstance(item, dict) else item
            if not isinstance(text, str):
                raise reader.error(key, "a list of strings or of objects with a content")
            found.append(text)
    return found


def _declared_tokens(config: ConfigReader, backend: Backend) -> dict[int, AddedToken]:
    """Tokens of ``added_tokens_decoder`` that ``tokenizer.json`` does not have, or has as not special."""
    known = backend.get_added_tokens_decoder()
    declared: dict[int, AddedToken] = {}
    for key, entry in config.section("added_tokens_decoder").values.items():
        if not key.isdigit() or not isinstance(entry, dict) or not isinstance(entry.get("content"), str):
            raise config.error("added_tokens_decoder", "token id -> object with a content")
        flags = {
            name: bool(entry.get(name, False)) for name in ("single_word", "lstrip", "rstrip", "normalized")
        }
        token = AddedToken(entry["content"], special=bool(entry.get("special", False)), **flags)
        existing = known.get(int(key))
        if existing is None or (token.special and not existing.special):
            declared[int(key)] = token
    return declared


def _mark_special(backend: Backend, texts: list[str]) -> None:
    """Makes tokens special that the vocabulary has. Others would get ids that the model has no embedding for."""
    special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    for text in dict.fromkeys(texts):
        if text not in special and backend.token_to_id(text) is not None:
            backend.add_special_tokens([AddedToken(text, special=True, normalized=False)])


def _eos_ids(root: Path, eos_id: int | None) -> frozenset[int]:
    ids = {eos_id} if eos_id is not None else set()
    for name in ("generation_config.json", "config.json"):
        ids.update(_read_json(root / name).token_ids("eos_token_id"))
    return frozenset(ids)


def _chat_templates(root: Path, config: ConfigReader) -> dict[str, str]:
    templates = _config_templates(config)
    for folder in (root / "chat_templates", root / "additional_chat_templates"):
        for path in sorted(folder.glob("*.jinja")):
            templates[path.stem] = path.read_text(encoding="utf-8")
    single = _read_json(root / "chat_template.json")
    if single.has("chat_template"):
        templates[DEFAULT_TEMPLATE] = single.text("chat_template")
    jinja = root / "chat_template.jinja"
    if jinja.is_file():
        templates[DEFAULT_TEMPLATE] = jinja.read_text(encoding="utf-8")
    return templates


def _config_templates(config: ConfigReader) -> dict[str, str]:
    """One template, or a list of them with names."""
    value = config.values.get("chat_template")
    if value is None:
        return {}
    if isinstance(value, str):
        return {DEFAULT_TEMPLATE: value}
    entries = value if isinstance(value, list) else [value]
    templates: dict[str, str] = {}
    for entry in entries:
        if not isinstance(entry, Mapping) or not all(
            isinstance(entry.get(k), str) for k in ("name", "template")
        ):
            raise config.error("chat_template", "a string, or a list of objects with a name and a template")
        templates[entry["name"]] = entry["template"]
    return templates
