"""Tokenizers that several test modules read with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

from compute_loop.models.files import ModelFiles
from srt.server.tokenizer import Tokenizer
from tests.server import tiny_tokenizers as tiny


@pytest.fixture(scope="module", params=sorted(tiny.KINDS))
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    root = tmp_path_factory.mktemp(request.param)
    return tiny.save_directory(tiny.KINDS[request.param](), root)


@pytest.fixture(scope="module")
def tokenizer(directory: ModelFiles) -> Tokenizer:
    return Tokenizer.load(directory)


@pytest.fixture(scope="module")
def reference(directory: ModelFiles) -> Any:
    return transformers.AutoTokenizer.from_pretrained(directory.root)


@pytest.fixture
def byte_level(tmp_path: Path) -> Tokenizer:
    return Tokenizer.load(tiny.save_directory(tiny.byte_level(), tmp_path))
