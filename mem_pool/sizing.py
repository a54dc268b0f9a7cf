"""How many tokens the KV pool holds. Arithmetic only: runs without torch."""

from __future__ import annotations

from srt.core.errors import ConfigError

SAVE_SLICE_BYTES = 4 << 20
"""KV copied to host memory in one go while the cache is saved: about a millisecond in which no step is launched."""

NUM_SAVE_BUFFERS = 2
"""One is written to disk while the other is filled."""


def kv_bytes_per_token(num_layers: int, num_kv_heads: int, head_dim: int, bytes_per_number: int) -> int:
    """Bytes of keys and values of one token in all layers."""
    return 2 * num_layers * num_kv_heads * head_dim * bytes_per_number


def pool_tokens(
    *,
    free_bytes: int,
    bytes_per_token: int,
    mem_fraction: float,
    max_total_tokens: int | None,
    page_size: int,
    context_length: int,
    max_running: int,
) -> int:
    """Tokens of the pool, a multiple of `page_size`; the dummy page comes on top.

    The share `mem_fraction` of `free_bytes`, but no more than `max_running` sequences of full length could fill: past
    that memory is only cache, and a small model would take gigabytes for it. `max_total_tokens` overrides both and is
    rounded down to whole pages. A pool shorter than `context_length` is fine: a request that does not fit is refused.

    Raises:
        ConfigError: not one page fits; says how many bytes were needed and how many there are.
    """
    page_bytes = page_size * bytes_per_token
    fitting = free_bytes // page_bytes - 1
    if max_total_tokens is not None:
        wanted = max_total_tokens // page_size
        if wanted > fitting:
            raise ConfigError(
                f"--max-total-tokens {max_total_tokens} needs {_gib((wanted + 1) * page_bytes)} of KV memory, "
                f"{_gib(free_bytes)} are free; at most {max(0, fitting) * page_size} tokens fit"
            )
    else:
        budget = int(free_bytes * mem_fraction) // page_bytes - 1
        wanted = min(budget, max_running * -(-context_length // page_size))
        if wanted < 1:
            raise ConfigError(
                f"--mem-fraction {mem_fraction} of {_gib(free_bytes)} free memory holds no page of {page_size} tokens "
                f"({page_bytes} bytes, and as much for the dummy page); free memory or raise the fraction"
            )
    if wanted < 1:
        raise ConfigError(
            f"--max-total-tokens {max_total_tokens} is less than one page of {page_size} tokens"
        )
    return wanted * page_size


def save_buffer_pages(page_bytes: int) -> int:
    """Pages in one buffer between compute and the helper that writes files."""
    return max(1, SAVE_SLICE_BYTES // page_bytes)


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"
