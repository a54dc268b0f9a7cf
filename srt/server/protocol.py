"""The bodies of requests, each defined once. What is not understood is refused by name, never ignored.

Those of OpenAI's routes are in `openai_protocol`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import orjson
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, model_validator

from srt.core.errors import InvalidRequest
from srt.core.messages import PauseMode
from srt.core.sampling_params import MAX_SEED, SamplingParams
from srt.server.placement import MAX_PRIORITY, MIN_PRIORITY, Placement

MAX_N = 128
"""Most choices for one prompt."""

MAX_PROMPTS = 4096
"""Most prompts in one body."""

MAX_FLUSH_SECONDS = 3600.0
"""Longest wait of a flush."""

MAX_VIEW_NODES = 1000
"""Most nodes in one view of the tree: the control loop is busy with it for less than a millisecond."""

MAX_VIEW_DEPTH = 10_000
"""Most levels below the root in one view."""

MAX_VIEW_HEAD = 256
"""Most tokens of one node whose text a view has."""

Neutral = Mapping[str, tuple[object, ...]]
"""Fields that clients send though they mean nothing by it -> the values that mean nothing. null always does."""

Rid = Annotated[str, Field(min_length=1, max_length=256)]

NOTHING: tuple[object, ...] = ()


class Body(BaseModel):
    """A JSON object with known fields. Types are strict: "1" is no number and 1 is no boolean."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    neutral: ClassVar[Neutral] = {}
    """Known fields that this server does not support."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_unsupported(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for name in cls.neutral:
            value = data.get(name)
            if value is not None and value not in cls.neutral[name]:
                raise InvalidRequest(
                    f"{name} is {shown(value)}: this server does not support {name}, leave it out", field=name
                )
        return {name: value for name, value in data.items() if name not in cls.neutral}


class SamplingFields(Body):
    """What every route lets a client choose. None leaves the choice to the server."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = Field(default=None, ge=-MAX_SEED - 1, le=MAX_SEED)
    n: int | None = Field(default=None, ge=1, le=MAX_N)
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    no_stop_trim: bool | None = None

    def params(self, max_new_tokens: int, seed: int) -> SamplingParams:
        """The sampling parameters of one choice, complete but not yet checked against their ranges."""
        stop = [self.stop] if isinstance(self.stop, str) else self.stop or []
        chosen: dict[str, Any] = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            # 0 is how some clients say "no limit".
            "top_k": -1 if self.top_k == 0 else self.top_k,
            "min_p": self.min_p,
            "ignore_eos": self.ignore_eos,
            "skip_special_tokens": self.skip_special_tokens,
            "no_stop_trim": self.no_stop_trim,
        }
        return SamplingParams(
            max_new_tokens=max_new_tokens,
            seed=seed,
            stop=tuple(stop),
            stop_token_ids=tuple(self.stop_token_ids or ()),
            **{name: value for name, value in chosen.items() if value is not None},
        )


class PlacementFields(Body):
    """How a request stands among others."""

    extra_key: str | None = None
    cache_salt: str | None = None
    priority: int | None = Field(default=None, ge=MIN_PRIORITY, le=MAX_PRIORITY)

    @property
    def placement(self) -> Placement:
        return Placement.of(self.extra_key, self.cache_salt, self.priority)


# --- native ---------------------------------------------------------------------------------------------------


class NativeSampling(SamplingFields):
    """``sampling_params`` of /generate."""

    neutral: ClassVar[Neutral] = {
        "frequency_penalty": (0,),
        "presence_penalty": (0,),
        "repetition_penalty": (1,),
        "min_new_tokens": (0,),
        "logit_bias": ({},),
        "stop_regex": ([], ""),
        "regex": ("",),
        "json_schema": ("",),
        "ebnf": ("",),
        "structural_tag": ("",),
        "spaces_between_special_tokens": (True,),
        "beam_width": (1,),
        "best_of": (1,),
        "stream_interval": (1,),
        "custom_params": ({},),
        "watermark": (False,),
    }

    max_new_tokens: int | None = None
    seed: int | None = Field(
        default=None, ge=-MAX_SEED - 1, le=MAX_SEED, validation_alias=AliasChoices("sampling_seed", "seed")
    )


class GenerateBody(PlacementFields):
    """POST /generate."""

    neutral: ClassVar[Neutral] = {
        "return_logprob": (False, [False]),
        "logprob_start_len": (-1,),
        "top_logprobs_num": (0,),
        "token_ids_logprob": ([],),
        "return_text_in_logprobs": (False, True),
        "return_hidden_states": (False,),
        "input_embeds": NOTHING,
        "image_data": NOTHING,
        "video_data": NOTHING,
        "audio_data": NOTHING,
        "modalities": NOTHING,
        "lora_path": NOTHING,
        "session_params": NOTHING,
        "custom_logit_processor": NOTHING,
        "log_metrics": (False, True),
        "background": (False,),
    }

    text: str | Annotated[list[str], Field(max_length=MAX_PROMPTS)] | None = None
    input_ids: list[int] | Annotated[list[list[int]], Field(max_length=MAX_PROMPTS)] | None = None
    sampling_params: NativeSampling | list[NativeSampling] | None = None
    stream: bool | None = None
    rid: Rid | list[Rid] | None = None


class AbortBody(Body):
    """POST /abort_request: one request by its exact id, or all."""

    rid: str | None = None
    abort_all: bool | None = None


class FlushQuery(Body):
    """The query of /flush_cache. Its values come as text."""

    model_config = ConfigDict(strict=False)

    timeout: float = Field(default=0.0, ge=0, le=MAX_FLUSH_SECONDS)


class TreeQuery(Body):
    """The query of /radix_tree and /radix_tree.html. Its values come as text."""

    model_config = ConfigDict(strict=False)

    nodes: int = Field(default=200, ge=1, le=MAX_VIEW_NODES)
    depth: int | None = Field(default=None, ge=1, le=MAX_VIEW_DEPTH)
    head: int = Field(default=24, ge=0, le=MAX_VIEW_HEAD)


class PauseBody(Body):
    """POST /pause_generation."""

    mode: PauseMode = "abort"


class ContinueBody(Body):
    """POST /continue_generation."""

    neutral: ClassVar[Neutral] = {"torch_empty_cache": (False, True)}


class SaveBody(Body):
    """POST /save_cache."""


class TokenizeBody(Body):
    """POST /tokenize."""

    model: str | None = None
    prompt: str | Annotated[list[str], Field(max_length=MAX_PROMPTS)]
    add_special_tokens: bool = True


class DetokenizeBody(Body):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[int] | Annotated[list[list[int]], Field(max_length=MAX_PROMPTS)]
    skip_special_tokens: bool = True


def shown(value: object) -> str:
    """A value in a message, as JSON, not too long."""
    try:
        text = orjson.dumps(value, default=repr).decode()
    except TypeError:  # nested too deeply to be written
        text = type(value).__name__
    return text if len(text) <= 80 else text[:77] + "..."
