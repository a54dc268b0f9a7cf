"""The GGUF reader against the gguf package's own, and on broken files."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, GGUFWriter

from compute_loop.models.gguf_file import GGML_TYPES, GgufFile
from srt.core.errors import ModelError
from tests.compute_loop.tiny_models import TinyGguf, write_gguf_model


@pytest.fixture
def rich_file(tmp_path: Path) -> Path:
    """One key of every value type."""
    path = tmp_path / "rich.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_uint8("u8", 200)
    writer.add_int8("i8", -100)
    writer.add_uint16("u16", 60000)
    writer.add_int16("i16", -30000)
    writer.add_uint32("u32", 4_000_000_000)
    writer.add_int32("i32", -2_000_000_000)
    writer.add_uint64("u64", 2**63 + 1)
    writer.add_int64("i64", -(2**62))
    writer.add_float32("f32", 1.5)
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_bool("no", False)
    writer.add_string("text", "Grüße, 世界 🎈")
    writer.add_array("strings", ["", "a", "Ġthe", "🎈"])
    writer.add_array("ints", [-1, 0, 7])
    writer.add_array("floats", [0.5, -0.25])
    writer.add_array("flags", [True, False, True])
    writer.add_tensor("vector", np.arange(7, dtype=np.float32))
    writer.add_tensor("matrix", np.arange(6, dtype=np.float16).reshape(2, 3))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_metadata_of_every_type(rich_file: Path) -> None:
    metadata = GgufFile(rich_file).metadata
    read = {key: metadata[key] for key in metadata if not key.startswith("general.")}
    assert read == {
        "u8": 200,
        "i8": -100,
        "u16": 60000,
        "i16": -30000,
        "u32": 4_000_000_000,
        "i32": -2_000_000_000,
        "u64": 2**63 + 1,
        "i64": -(2**62),
        "f32": 1.5,
        "f64": 0.1,
        "yes": True,
        "no": False,
        "text": "Grüße, 世界 🎈",
        "strings": ["", "a", "Ġthe", "🎈"],
        "ints": [-1, 0, 7],
        "floats": [0.5, -0.25],
        "flags": [True, False, True],
    }
    assert metadata["yes"] is True
    assert metadata["strings"] is metadata["strings"], "an array is decoded once"


def test_tensors_lie_where_the_package_finds_them(rich_file: Path) -> None:
    tensors = GgufFile(rich_file).tensors
    assert list(tensors) == ["vector", "matrix"]
    assert tensors["matrix"].shape == (2, 3)
    assert tensors["matrix"].rows().view(np.float16).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert tensors["vector"].rows().view(np.float32).tolist() == [list(range(7))]


def test_same_as_the_package_on_a_quantised_model(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf_model(path, TinyGguf(quant="Q4_1", hidden_size=128, num_heads=8))
    file, reference = GgufFile(path), GGUFReader(path)
    fields = {
        name: field.contents() for name, field in reference.fields.items() if not name.startswith("GGUF.")
    }
    assert dict(file.metadata) == fields
    assert list(file.tensors) == [tensor.name for tensor in reference.tensors]
    for theirs in reference.tensors:
        ours = file.tensors[theirs.name]
        assert ours.shape == tuple(theirs.shape.tolist()[::-1])
        assert (ours.kind.name, ours.offset, ours.num_bytes) == (
            theirs.tensor_type.name,
            theirs.data_offset,
            theirs.n_bytes,
        )
        assert ours.rows().tobytes() == theirs.data.tobytes()


def test_type_table_agrees_with_the_package() -> None:
    for kind in GGML_TYPES.values():
        theirs = GGMLQuantizationType[kind.name]
        assert theirs.value == kind.type_id
        assert GGML_QUANT_SIZES[theirs] == (kind.block_size, kind.block_bytes)


def test_rows_are_a_private_view(rich_file: Path) -> None:
    before = rich_file.read_bytes()
    GgufFile(rich_file).tensors["vector"].rows()[:] = 0
    assert rich_file.read_bytes() == before


def test_cut_anywhere_is_one_clear_error(rich_file: Path, tmp_path: Path) -> None:
    whole = rich_file.read_bytes()
    last = GgufFile(rich_file).tensors["matrix"]
    cut = tmp_path / "cut.gguf"
    for length in range(last.offset + last.num_bytes):
        cut.write_bytes(whole[:length])
        with pytest.raises(ModelError, match=r"cut\.gguf") as caught:
            GgufFile(cut)
        if length >= 4:
            assert "truncated in" in str(caught.value), length
    cut.write_bytes(whole[: last.offset + last.num_bytes])
    assert list(GgufFile(cut).tensors) == ["vector", "matrix"]


def test_truncated_names_the_tensor_or_key(rich_file: Path, tmp_path: Path) -> None:
    whole = rich_file.read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[: GgufFile(rich_file).tensors["matrix"].offset + 3])
    with pytest.raises(ModelError, match="truncated in tensor 'matrix'"):
        GgufFile(cut)
    cut.write_bytes(whole[: whole.index("Ġthe".encode()) + 1])
    with pytest.raises(ModelError, match="truncated in key 'strings'"):
        GgufFile(cut)


def _header(tensors: bytes, count: int, version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, count, 0) + tensors


def _tensor(name: bytes = b"w", shape: tuple[int, ...] = (32,), type_id: int = 0, offset: int = 0) -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
    return struct.pack("<Q", len(name)) + name + dimensions + struct.pack("<IQ", type_id, offset)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read as a GGUF file"),
        (b"GGML" + bytes(60), "not a GGUF file"),
        (_header(b"", 0, version=1), "GGUF version 1"),
        (_header(b"", 0, version=3 << 24), "big-endian"),
        (
            _header(_tensor(type_id=16) + bytes(4096), 1),
            "tensor 'w' has quantisation type 16, supported: F32",
        ),
        (
            _header(_tensor(type_id=12) + bytes(4096), 1),
            "tensor 'w' has shape .32., Q4_K needs rows",
        ),
        (_header(_tensor(shape=(0, 32)) + bytes(4096), 1), "tensor 'w' has shape .0, 32."),
        (_header(_tensor(shape=(1, 1, 1, 1, 1)) + bytes(4096), 1), "tensor 'w' has 5 dimensions"),
        (_header(_tensor(shape=(2**40, 2**40)) + bytes(4096), 1), "truncated in tensor 'w'"),
        (_header(_tensor() + _tensor() + bytes(4096), 2), "tensor 'w' is there twice"),
        (_header(_tensor(name=b"\xff\xfe") + bytes(4096), 1), "not UTF-8"),
        (_header(bytes(100), 2**60), "dimensions|truncated"),
    ],
)
def test_broken_files(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message) as caught:
        GgufFile(path)
    assert "broken.gguf" in str(caught.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nothing\.gguf"):
        GgufFile(tmp_path / "nothing.gguf")


def test_bad_utf8_in_an_array_names_the_key(rich_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(rich_file.read_bytes().replace("Ġthe".encode(), b"\xff\xfethe"))
    with pytest.raises(ModelError, match="key 'strings' has a string that is not UTF-8"):
        GgufFile(path).metadata["strings"]
