"""Bounds-checked reads from the header of a GGUF file."""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from srt.core.errors import ModelError

SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
"""Value type -> struct format; 8 is a string and 9 an array."""
STRING = 8
ARRAY = 9


@dataclass(frozen=True, slots=True)
class GgufArray:
    """An array in the metadata that is not decoded yet."""

    item_type: int
    count: int
    offset: int


class GgufCursor:
    """Bounds-checked little-endian reads, one after another."""

    def __init__(self, path: Path, data: mmap.mmap, offset: int = 0) -> None:
        self.path = path
        self.data = data
        self.offset = offset
        self.reading = "the header"

    def _advance(self, num_bytes: int) -> int:
        start = self.offset
        if num_bytes > len(self.data) - start:
            raise ModelError(
                f"{self.path}: truncated in {self.reading}: {num_bytes} bytes are expected at offset {start}, the file "
                f"has {len(self.data)}; fetch it again"
            )
        self.offset = start + num_bytes
        return start

    def scalar(self, form: str) -> int | float | bool:
        value: int | float | bool = struct.unpack_from(form, self.data, self._advance(struct.calcsize(form)))[
            0
        ]
        return value

    def count(self, form: str = "<Q") -> int:
        return int(self.scalar(form))

    def string(self) -> str:
        length = self.count()
        start = self._advance(length)
        try:
            return self.data[start : start + length].decode("utf-8")
        except UnicodeDecodeError as error:
            raise ModelError(
                f"{self.path}: {self.reading} has a string that is not UTF-8 at offset {start}"
            ) from error

    def skip_array(self) -> GgufArray:
        item_type, count = self.count("<I"), self.count()
        array = GgufArray(item_type, count, self.offset)
        if item_type in SCALARS:
            self._advance(struct.calcsize(SCALARS[item_type]) * count)
        elif item_type == STRING:
            self._skip_strings(count)
        else:
            raise ModelError(f"{self.path}: {self.reading} is an array of unknown item type {item_type}")
        return array

    def _skip_strings(self, count: int) -> None:
        # The hot loop of opening a file: one unpack a string, bounds checked by unpack_from itself.
        unpack, data, offset = struct.Struct("<Q").unpack_from, self.data, self.offset
        try:
            for _ in range(count):
                offset += 8 + unpack(data, offset)[0]
        except struct.error:
            offset = len(data) + 1
        self._advance(offset - self.offset)

    def array(self, array: GgufArray) -> list[object]:
        self.offset = array.offset
        if array.item_type == STRING:
            return self._strings(array.count)
        form = SCALARS[array.item_type]
        start = self._advance(struct.calcsize(form) * array.count)
        items: list[object] = np.frombuffer(self.data, np.dtype(form), array.count, start).tolist()
        return items

    def _strings(self, count: int) -> list[object]:
        # As hot as _skip_strings, which has checked the bounds already.
        unpack, data, offset = struct.Struct("<Q").unpack_from, self.data, self.offset
        strings: list[object] = []
        try:
            for _ in range(count):
                start = offset + 8
                offset = start + unpack(data, offset)[0]
                strings.append(str(data[start:offset], "utf-8"))
        except UnicodeDecodeError as error:
            raise ModelError(
                f"{self.path}: {self.reading} has a string that is not UTF-8 at offset {start}"
            ) from error
        self.offset = offset
        return strings
