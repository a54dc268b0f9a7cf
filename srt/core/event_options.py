"""The options about KV events."""

from __future__ import annotations

from dataclasses import dataclass

from srt.core.errors import ConfigError
from srt.core.option import flag, option

ZMQ_ADDRESSES = ("tcp://", "ipc://")


@dataclass(frozen=True, slots=True)
class EventOptions:
    """What enters and leaves the cache, told to routers."""

    kv_events: str | None = option(
        None,
        "publish BlockStored, BlockRemoved and AllBlocksCleared on this ZeroMQ address, say tcp://127.0.0.1:5557 or "
        "ipc:///run/twinloop.events; token ids and salts of requests are among it; default: nothing is published",
        metavar="ADDRESS",
    )
    kv_events_replay: str | None = option(
        None,
        "with --kv-events: the ZeroMQ address where subscribers ask for batches that they have missed, or for all "
        "that is cached; default: nowhere",
        metavar="ADDRESS",
    )
    kv_events_topic: str | None = option(
        None, "with --kv-events: the first frame of each message; default: an empty one", metavar="TEXT"
    )

    def check(self, radix_cache: bool) -> None:
        """Raises:
        ConfigError: an address is none, or an option needs another one.
        """
        for name, address in (("kv_events", self.kv_events), ("kv_events_replay", self.kv_events_replay)):
            if address is not None and not address.startswith(ZMQ_ADDRESSES):
                raise ConfigError(
                    f"{flag(name)} is {address!r}, it must begin with {' or '.join(ZMQ_ADDRESSES)}"
                )
        for name, value in (
            ("kv_events_replay", self.kv_events_replay),
            ("kv_events_topic", self.kv_events_topic),
        ):
            if self.kv_events is None and value is not None:
                raise ConfigError(f"{flag(name)} needs --kv-events")
        if self.kv_events is not None and not radix_cache:
            raise ConfigError("--kv-events with --no-radix-cache: nothing is cached, there are no events")
