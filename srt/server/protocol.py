"""The bodies of all requests, each defined once. What is not understood is refused by name, never ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import orjson
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, model_validator

from srt.core.errors import InvalidRequest
from srt.core.sampling_params import MAX_SEED, SamplingParams

MAX_N = 128
"""Most choices for one prompt."""

MAX_PROMPTS = 4096
"""Most prompts in one body."""

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


class GenerateBody(Body):
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
        "priority": (0,),
        "log_metrics": (False, True),
        "background": (False,),
    }

    text: str | Annotated[list[str], Field(max_length=MAX_PROMPTS)] | None = None
    input_ids: list[int] | Annotated[list[list[int]], Field(max_length=MAX_PROMPTS)] | None = None
    sampling_params: NativeSampling | list[NativeSampling] | None = None
    stream: bool | None = None
    rid: Rid | list[Rid] | None = None
    extra_key: str | None = None


class AbortBody(Body):
    """POST /abort_request: one request by its exact id, or all."""

    rid: str | None = None
    abort_all: bool | None = None


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


# --- OpenAI ---------------------------------------------------------------------------------------------------

_OPENAI_NEUTRAL: Neutral = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "min_tokens": (0,),
    "logit_bias": ({},),
    "best_of": (1,),
    "stop_regex": ([], ""),
    "regex": ("",),
    "json_schema": ("",),
    "ebnf": ("",),
    "structural_tag": ("",),
    "lora_path": NOTHING,
    "metadata": ({},),
    "store": (False,),
    "service_tier": ("auto", "default"),
}


class StreamOptions(Body):
    neutral: ClassVar[Neutral] = {"include_obfuscation": (False, True), "continuous_usage_stats": (False,)}

    include_usage: bool | None = None


class OpenAiBody(SamplingFields):
    """What /v1/completions and /v1/chat/completions share. `user` names the client's user and changes nothing."""

    model: str | None = None
    max_tokens: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    rid: Rid | None = None
    extra_key: str | None = None
    user: str | None = None

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


class CompletionBody(OpenAiBody):
    """POST /v1/completions."""

    neutral: ClassVar[Neutral] = {
        **_OPENAI_NEUTRAL,
        "echo": (False,),
        "suffix": ("",),
        "logprobs": NOTHING,
        "response_format": ({"type": "text"},),
    }

    prompt: (
        str
        | list[int]
        | Annotated[list[str], Field(max_length=MAX_PROMPTS)]
        | Annotated[list[list[int]], Field(max_length=MAX_PROMPTS)]
    )


class TextPart(Body):
    type: Literal["text"]
    text: str


class ChatMessage(Body):
    """One turn. `content` is a text or a list of text parts, which are joined."""

    neutral: ClassVar[Neutral] = {
        "tool_calls": ([],),
        "tool_call_id": NOTHING,
        "function_call": NOTHING,
        "audio": NOTHING,
        "refusal": NOTHING,
        "annotations": ([],),
        "reasoning_content": ("",),
    }

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(min_length=1)]
    name: str | None = None


class ChatBody(OpenAiBody):
    """POST /v1/chat/completions."""

    neutral: ClassVar[Neutral] = {
        **_OPENAI_NEUTRAL,
        "logprobs": (False,),
        "top_logprobs": (0,),
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "parallel_tool_calls": (True, False),
        "functions": ([],),
        "function_call": ("none", "auto"),
        "response_format": ({"type": "text"},),
        "modalities": (["text"],),
        "audio": NOTHING,
        "prediction": NOTHING,
        "reasoning_effort": NOTHING,
        "verbosity": NOTHING,
        "web_search_options": NOTHING,
    }

    messages: list[ChatMessage] = Field(min_length=1)
    max_completion_tokens: int | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


def shown(value: object) -> str:
    """A value in a message, as JSON, not too long."""
    try:
        text = orjson.dumps(value, default=repr).decode()
    except TypeError:  # nested too deeply to be written
        text = type(value).__name__
    return text if len(text) <= 80 else text[:77] + "..."
