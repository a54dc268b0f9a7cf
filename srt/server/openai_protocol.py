"""The bodies of OpenAI's routes."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from srt.server.protocol import MAX_PROMPTS, NOTHING, Body, Neutral, PlacementFields, Rid, SamplingFields

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


class OpenAiBody(SamplingFields, PlacementFields):
    """What /v1/completions and /v1/chat/completions share. `user` names the client's user and changes nothing."""

    model: str | None = None
    max_tokens: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    rid: Rid | None = None
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
