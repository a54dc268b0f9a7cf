"""A page's hash names its tokens, all tokens before them, and the namespace; and nothing else."""

from __future__ import annotations

import hashlib
import random
import sys

import numpy as np
import pytest

from radix_cache.content_hash import HASH_BYTES, block_number, page_hashes, root_hash
from radix_cache.key import RadixKey


def hashes_of(ids: list[int], page_size: int, namespace: str | None = None) -> list[bytes]:
    key = RadixKey(np.array(ids, np.int32), namespace)
    whole = len(ids) // page_size * page_size * 4
    return page_hashes(root_hash(key.salt), key.data[:whole], page_size * 4)


def test_each_page_is_hashed_behind_the_hash_before_it() -> None:
    first, second = hashes_of([1, 2, 3, 4], 2)
    root = hashlib.blake2b(b"", digest_size=16, person=b"namespace").digest()
    ids = np.array([1, 2, 3, 4], np.int32).tobytes()
    assert first == hashlib.blake2b(root + ids[:8], digest_size=16).digest()
    assert second == hashlib.blake2b(first + ids[8:], digest_size=16).digest()


@pytest.mark.skipif(sys.byteorder != "little", reason="ids are hashed in machine order")
def test_hashes_stay_what_they_are() -> None:
    """They are in files and in other programs: a change of the scheme needs a new version of both."""
    assert hashes_of([1, 2, 3], 1)[-1].hex() == "0c5b4a3200e7ba6ce2aa85d6a5cca3e9"
    assert hashes_of([7] * 16, 16, "tenant")[0].hex() == "01a67e190055d1b3a63637b87ec75454"
    assert block_number(hashes_of([1, 2, 3], 1)[-1]) == int("0c5b4a3200e7ba6ce2aa85d6a5cca3e9"[:16], 16)


def test_a_number_is_the_first_eight_bytes_big_endian() -> None:
    assert block_number(bytes([1, 0, 0, 0, 0, 0, 0, 2, *[255] * 8])) == (1 << 56) + 2


@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_equal_prefixes_have_equal_hashes_and_no_others_do(page_size: int) -> None:
    seed = 5
    rng = random.Random(seed)
    seen: dict[bytes, tuple[str | None, tuple[int, ...]]] = {}
    for _ in range(300):
        ids = [rng.randrange(2) for _ in range(rng.randrange(5 * page_size))]
        namespace = rng.choice((None, "", "a", "b"))
        hashes = hashes_of(ids, page_size, namespace)
        assert len(hashes) == len(ids) // page_size
        for index, found in enumerate(hashes):
            assert len(found) == HASH_BYTES
            prefix = namespace, tuple(ids[: (index + 1) * page_size])
            assert seen.setdefault(found, prefix) == prefix, f"seed {seed}"
    assert len(set(seen.values())) == len(seen), f"two hashes for one prefix, seed {seed}"


def test_a_chain_may_be_cut_anywhere() -> None:
    """A split of a node changes no hash."""
    ids = np.arange(24, dtype=np.int32).tobytes()
    whole = page_hashes(root_hash(), ids, 16)
    for cut in range(7):
        upper = page_hashes(root_hash(), ids[: cut * 16], 16)
        lower = page_hashes(upper[-1] if upper else root_hash(), ids[cut * 16 :], 16)
        assert upper + lower == whole


def test_page_sizes_and_namespaces_do_not_meet() -> None:
    ids = list(range(16))
    found = [*hashes_of(ids, 16), *hashes_of(ids, 8), *hashes_of(ids, 16, ""), *hashes_of(ids, 16, "a")]
    assert len(set(found)) == len(found)


def test_a_namespace_cannot_be_named_after_a_page() -> None:
    page = np.arange(4, dtype=np.int32).tobytes()
    (found,) = page_hashes(root_hash(), page, 16)
    assert root_hash(root_hash() + page) != found


def test_a_part_of_a_page_is_refused() -> None:
    with pytest.raises(ValueError, match="whole pages of 16 bytes"):
        page_hashes(root_hash(), bytes(20), 16)
