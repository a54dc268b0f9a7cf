"""From options to a runner with a model in it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.metadata import version

import torch

from compute_loop.attention.torch_backend import TorchAttention
from compute_loop.models.config import ModelConfig, load_model_config
from compute_loop.models.digest import digest_model
from compute_loop.models.files import ModelFiles, locate_model
from compute_loop.models.registry import build_program
from compute_loop.models.weights import load_weights
from compute_loop.runner.eager import EagerRunner
from compute_loop.runner.executor import ProgramExecutor
from mem_pool.device import free_memory, has_native_bfloat16, read_cpu_free, return_freed_memory
from mem_pool.host_pool import HostPool
from mem_pool.kv_format import KVFormat
from mem_pool.kv_pool import KVPool
from mem_pool.sizing import NUM_SAVE_BUFFERS, kv_bytes_per_token, pool_tokens, save_buffer_pages
from srt.core.cache_identity import CacheIdentity
from srt.core.config import Config
from srt.core.errors import ConfigError


@dataclass(frozen=True, slots=True, eq=False)
class LoadedModel:
    """A runner that is ready, and what the control side must know of it.

    `num_slots` counts dummy slot 0; `num_pages` does not count dummy page 0. `context_length` is in tokens.
    `host` and `identity` are there when the cache is to be saved: memory for the copies, and whose KV it is.
    """

    runner: EagerRunner
    name: str
    config: ModelConfig
    dtype: str
    device: str
    num_pages: int
    page_size: int
    num_slots: int
    context_length: int
    host: HostPool | None = None
    identity: CacheIdentity | None = None

    @property
    def num_save_pages(self) -> int:
        """The first host pages are there for saving the cache; the others are the host tier's."""
        return _num_save_pages(self.host.page_bytes) if self.host is not None and self.identity else 0

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self.config.eos_token_ids


def load_runner(config: Config, device: torch.device | None = None) -> LoadedModel:
    """Loads the model that `config` names and makes a KV pool in the memory that is left.

    Sets torch's number of threads for the whole process.

    Raises:
        ModelError: the model's files.
        ConfigError: an option does not fit the model or the machine.
    """
    device = device or torch.device("cpu")
    if config.model.compute_threads is not None:
        torch.set_num_threads(config.model.compute_threads)
    files = locate_model(config.model.model, config.model.revision)
    model = load_model_config(files)
    dtype = resolve_dtype(config.model.dtype)
    context_length = _context_length(config, model)
    program = build_program(model)
    tensors = {name: tensor.to(device) for name, tensor in load_weights(files, model, dtype).items()}
    page_size, max_running = config.cache.page_size, config.schedule.max_running_requests
    num_tokens = pool_tokens(
        free_bytes=free_memory(device),
        bytes_per_token=kv_bytes_per_token(
            model.num_layers, model.num_kv_heads, model.head_dim, dtype.itemsize
        ),
        mem_fraction=config.cache.mem_fraction,
        max_total_tokens=config.cache.max_total_tokens,
        page_size=page_size,
        context_length=context_length,
        max_running=max_running,
    )
    num_pages = num_tokens // page_size
    pool = KVPool(
        num_pages, page_size, model.num_layers, model.num_kv_heads, model.head_dim, KVFormat(dtype), device
    )
    executor = ProgramExecutor(program, tensors, pool, TorchAttention(pool, program.heads))
    return_freed_memory()
    host = _host_pool(config, pool)
    return LoadedModel(
        runner=EagerRunner(executor, max_running + 1, min(num_pages, -(-context_length // page_size)), host),
        name=config.model.served_model_name or files.name,
        config=model,
        dtype=str(dtype).removeprefix("torch."),
        device=device.type,
        num_pages=num_pages,
        page_size=page_size,
        num_slots=max_running + 1,
        context_length=context_length,
        host=host,
        identity=_identity(config, files, model, pool),
    )


def _num_save_pages(page_bytes: int) -> int:
    return NUM_SAVE_BUFFERS * save_buffer_pages(page_bytes)


def _host_pool(config: Config, pool: KVPool) -> HostPool | None:
    """::

    host pages   [0 ............. num_save_pages)[num_save_pages ........ num_pages)
                  between compute and the helper  the host tier's
                  that saves the cache
    """
    tier_gb = config.cache.host_cache_gb
    num_save_pages = 0 if config.cache.cache_dir is None else _num_save_pages(pool.page_bytes)
    num_pages = num_save_pages + int(tier_gb * 1e9) // pool.page_bytes
    if tier_gb and tier_gb * 1e9 > (free := read_cpu_free()):
        raise ConfigError(
            f"--host-cache-gb is {tier_gb:g}, but only {free / 1e9:.1f} GB of host memory are free"
        )
    return HostPool(num_pages, pool.page_bytes, pool.layers[0].device) if num_pages else None


def _identity(config: Config, files: ModelFiles, model: ModelConfig, pool: KVPool) -> CacheIdentity | None:
    if config.cache.cache_dir is None:
        return None
    return CacheIdentity(
        program=version("twinloop"),
        model=files.name,
        weights=digest_model(files),
        dtype=str(pool.format.dtype).removeprefix("torch."),
        layout=pool.format.layout.name,
        num_layers=model.num_layers,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        page_size=pool.page_size,
        page_bytes=pool.page_bytes,
        byte_order=sys.byteorder,
    )


def resolve_dtype(name: str) -> torch.dtype:
    """The number format of weights and KV. "auto" on a CPU: bfloat16 where it multiplies natively, else float32."""
    if name != "auto":
        return DTYPES[name]
    return torch.bfloat16 if has_native_bfloat16() else torch.float32


DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def _context_length(config: Config, model: ModelConfig) -> int:
    asked = config.model.context_length
    if asked is None:
        return model.max_position_embeddings
    if asked > model.max_position_embeddings:
        raise ConfigError(
            f"--context-length {asked} is more than the model allows: {model.max_position_embeddings} tokens"
        )
    return asked
