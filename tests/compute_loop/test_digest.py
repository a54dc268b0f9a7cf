"""A model's name by its content: what changes a weight changes it, what does not does not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from compute_loop.models.digest import digest_model
from compute_loop.models.files import locate_model
from srt.core.errors import ModelError
from tests.compute_loop.tiny_models import write_hf_model


def model_in(directory: Path, seed: int = 1) -> Path:
    directory.mkdir()
    write_hf_model(directory, seed=seed)
    return directory


def test_the_same_bytes_elsewhere_have_the_same_digest_and_other_weights_another(tmp_path: Path) -> None:
    first, moved = model_in(tmp_path / "first"), model_in(tmp_path / "moved")
    other = model_in(tmp_path / "other", seed=2)
    digests = [digest_model(locate_model(str(root))) for root in (first, moved, other)]
    assert digests[0] == digests[1] != digests[2]
    assert digests[0] != digests[2]


def test_a_byte_of_the_weights_or_of_the_configuration_changes_it_even_at_the_same_time_stamp(
    tmp_path: Path,
) -> None:
    files = locate_model(str(model_in(tmp_path / "m")))
    seen = {digest_model(files)}
    for path in (files.weight_files[0], files.root / "config.json"):
        stamp = path.stat()
        data = bytearray(path.read_bytes())
        data[-2] ^= 1
        path.write_bytes(data)
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        seen.add(digest_model(files))
    assert len(seen) == 3


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    files = locate_model(str(model_in(tmp_path / "m")))
    files.weight_files[0].unlink()
    with pytest.raises(ModelError, match=files.weight_files[0].name):
        digest_model(files)
