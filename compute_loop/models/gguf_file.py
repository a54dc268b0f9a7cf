"""Reading GGUF files: metadata and where each tensor lies.

The layout is that of the GGUF specification, versions 2 and 3 (ggml project, ``docs/gguf.md``). Only the header is
parsed here, over a memory map: vocabularies have 10^5 strings, so arrays are walked once and decoded when read.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from compute_loop.models.gguf_cursor import ARRAY, SCALARS, STRING, GgufArray, GgufCursor
from srt.core.errors import ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class GgmlType:
    """How a tensor's numbers are stored: `block_bytes` bytes for each `block_size` numbers of a row."""

    type_id: int
    name: str
    block_size: int
    block_bytes: int


GGML_TYPES = {
    kind.type_id: kind
    for kind in (
        GgmlType(0, "F32", 1, 4),
        GgmlType(1, "F16", 1, 2),
        GgmlType(2, "Q4_0", 32, 18),
        GgmlType(3, "Q4_1", 32, 20),
        GgmlType(6, "Q5_0", 32, 22),
        GgmlType(7, "Q5_1", 32, 24),
        GgmlType(8, "Q8_0", 32, 34),
        GgmlType(10, "Q2_K", 256, 84),
        GgmlType(11, "Q3_K", 256, 110),
        GgmlType(12, "Q4_K", 256, 144),
        GgmlType(13, "Q5_K", 256, 176),
        GgmlType(14, "Q6_K", 256, 210),
        GgmlType(20, "IQ4_NL", 32, 18),
        GgmlType(23, "IQ4_XS", 256, 136),
        GgmlType(30, "BF16", 1, 2),
    )
}
"""The formats that can be loaded. Quantisers take Q5_0 and the like where 256 does not divide a row."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor of a file. `shape` is row-major, outermost first (the file stores it the other way round)."""

    path: Path
    name: str
    shape: tuple[int, ...]
    kind: GgmlType
    offset: int
    num_bytes: int

    def rows(self) -> npt.NDArray[np.uint8]:
        """The stored bytes as ``[rows, bytes of a row]``: a private view of the mapped file, read on access."""
        num_rows = int(np.prod(self.shape[:-1], dtype=np.int64))
        shape = (num_rows, self.num_bytes // num_rows)
        # A plain array over the map: the memmap subclass makes every slice of it dear.
        return np.memmap(self.path, np.uint8, "c", offset=self.offset, shape=shape).view(np.ndarray)


class _Metadata(Mapping[str, object]):
    """key -> bool, int, float, str or a list of these; arrays are decoded on first access and kept."""

    def __init__(self, path: Path, data: mmap.mmap, values: dict[str, object]) -> None:
        self._path = path
        self._data = data
        self._values = values

    def __getitem__(self, key: str) -> object:
        value = self._values[key]
        if isinstance(value, GgufArray):
            cursor = GgufCursor(self._path, self._data)
            cursor.reading = f"key {key!r}"
            value = self._values[key] = cursor.array(value)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"_Metadata({len(self._values)} keys of {self._path.name})"


class GgufFile:
    """A GGUF file, opened and checked: every tensor lies within the file and has a format that can be loaded.

    Attributes:
        path: the file.
        version: of the format, 2 or 3.
        metadata: key -> bool, int, float, str or a list of these.
        tensors: name -> `GgufTensor`, in the order of the file.

    Raises:
        ModelError: not a GGUF file, truncated, of another version, or with a tensor of an unknown format; names the
            file and the key or tensor.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        data = _map_file(path)
        cursor = GgufCursor(path, data)
        magic = data[: len(MAGIC)]
        if magic != MAGIC:
            raise ModelError(f"{path}: not a GGUF file (it starts with {magic!r}, not {MAGIC!r})")
        cursor.offset = len(MAGIC)
        self.version = cursor.count("<I")
        if self.version not in VERSIONS:
            raise ModelError(
                f"{path}: GGUF version {self.version} (or a big-endian file), supported: 2 and 3"
            )
        num_tensors, num_keys = cursor.count(), cursor.count()
        values: dict[str, object] = {}
        for _ in range(num_keys):
            key, value = _read_entry(cursor)
            values[key] = value
        self.metadata: Mapping[str, object] = _Metadata(path, data, values)
        self.tensors: Mapping[str, GgufTensor] = self._read_tensors(cursor, num_tensors)

    def _read_tensors(self, cursor: GgufCursor, num_tensors: int) -> dict[str, GgufTensor]:
        alignment = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 8 or alignment % 8:
            raise ModelError(
                f"{self.path}: key 'general.alignment' is {alignment!r}, expected a multiple of 8"
            )
        cursor.reading = "the list of tensors"
        relative = [_read_tensor(cursor) for _ in range(num_tensors)]
        data_start = -(-cursor.offset // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for tensor in relative:
            offset = data_start + tensor.offset
            if offset + tensor.num_bytes > len(cursor.data):
                raise ModelError(
                    f"{self.path}: truncated in tensor {tensor.name!r}: it ends at byte "
                    f"{offset + tensor.num_bytes}, the file has {len(cursor.data)}; fetch it again"
                )
            if tensor.name in tensors:
                raise ModelError(f"{self.path}: tensor {tensor.name!r} is there twice")
            tensors[tensor.name] = GgufTensor(
                tensor.path, tensor.name, tensor.shape, tensor.kind, offset, tensor.num_bytes
            )
        return tensors

    def __repr__(self) -> str:
        return f"GgufFile({self.path}, {len(self.metadata)} keys, {len(self.tensors)} tensors)"


def _map_file(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # an empty file cannot be mapped: ValueError
        raise ModelError(f"{path}: cannot be read as a GGUF file: {error}") from error


def _read_entry(cursor: GgufCursor) -> tuple[str, object]:
    cursor.reading = "the metadata"
    key = cursor.string()
    cursor.reading = f"key {key!r}"
    value_type = cursor.count("<I")
    if value_type == STRING:
        return key, cursor.string()
    if value_type == ARRAY:
        return key, cursor.skip_array()
    if value_type not in SCALARS:
        raise ModelError(f"{cursor.path}: key {key!r} has unknown value type {value_type}")
    return key, cursor.scalar(SCALARS[value_type])


def _read_tensor(cursor: GgufCursor) -> GgufTensor:
    """A tensor whose `offset` still counts from the start of the tensor data."""
    name = cursor.string()
    num_dimensions = cursor.count("<I")
    if not 1 <= num_dimensions <= MAX_DIMENSIONS:
        raise ModelError(
            f"{cursor.path}: tensor {name!r} has {num_dimensions} dimensions, 1 to {MAX_DIMENSIONS} are known"
        )
    shape = tuple(cursor.count() for _ in range(num_dimensions))[::-1]
    type_id = cursor.count("<I")
    kind = GGML_TYPES.get(type_id)
    if kind is None:
        known = ", ".join(known.name for known in GGML_TYPES.values())
        raise ModelError(
            f"{cursor.path}: tensor {name!r} has quantisation type {type_id}, supported: {known}"
        )
    if 0 in shape or shape[-1] % kind.block_size:
        raise ModelError(
            f"{cursor.path}: tensor {name!r} has shape {list(shape)}, {kind.name} needs rows of a multiple of "
            f"{kind.block_size} numbers"
        )
    num_elements = int(np.prod(shape, dtype=object))
    num_bytes = num_elements // kind.block_size * kind.block_bytes
    return GgufTensor(cursor.path, name, shape, kind, cursor.count(), num_bytes)
