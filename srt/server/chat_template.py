"""A model's chat template: messages in, the text of the prompt out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from srt.core.errors import ConfigError, InvalidRequest
from srt.server.special_text import SpecialText
from srt.server.tokenizer import Tokenizer
from srt.server.tokenizer_spec import DEFAULT_TEMPLATE

TOOL_TEMPLATE = "tool_use"
"""Name of the template for requests with tools, where a model has several."""

Message = Mapping[str, object]

_CONTINUE_HERE = "\ufdd1"
"""Marks the end of a message that is to be continued; a code point that is no character."""

MAX_NESTING = 64
"""Of objects and lists in messages, tools and template variables."""


class _TemplateRaised(Exception):
    """A template called ``raise_exception``."""


class _Generation(Extension):
    """``{% generation %} ... {% endgeneration %}``: marks the assistant's words for training; here only a bracket."""

    tags = {"generation"}  # noqa: RUF012  Jinja declares an instance attribute and reads it from the class

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """Renders messages with a model's Jinja template, in a sandbox. Immutable; any thread may render.

    Templates see what they see in transformers: `messages`, `tools`, `documents`, `add_generation_prompt`, the special
    tokens by name, ``raise_exception``, ``strftime_now``, and a ``tojson`` that escapes nothing.

    Args:
        templates: name -> source. "tool_use" serves requests with tools, "default" all others.
        special_tokens: name ("bos_token", ...) -> text.
        special_text: marks special tokens in messages, so that they stay text.
        now: the clock of ``strftime_now``.
    """

    def __init__(
        self,
        templates: Mapping[str, str],
        special_tokens: Mapping[str, str],
        special_text: SpecialText,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._special_tokens = dict(special_tokens)
        self._special_text = special_text
        environment = _environment(now)
        self._compiled: dict[str, jinja2.Template | str] = {
            name: _compile(environment, source) for name, source in templates.items()
        }

    @classmethod
    def for_tokenizer(cls, tokenizer: Tokenizer, file: Path | None = None) -> ChatTemplate:
        """The templates of a model, or the one in `file` instead of them (``--chat-template``).

        Raises:
            ConfigError: the file cannot be read or is no template.
        """
        if file is None:
            return cls(tokenizer.chat_templates, tokenizer.special_tokens, tokenizer.special_text)
        try:
            source = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--chat-template {str(file)!r} cannot be read: {error}") from error
        template = cls({DEFAULT_TEMPLATE: source}, tokenizer.special_tokens, tokenizer.special_text)
        broken = template._compiled[DEFAULT_TEMPLATE]
        if isinstance(broken, str):
            raise ConfigError(f"--chat-template {str(file)!r} is not a Jinja template: {broken}")
        return template

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        continue_final_message: bool = False,
        extra: Mapping[str, object] | None = None,
        *,
        allow_special: bool = False,
    ) -> str:
        """The text of a prompt, to be given to `Tokenizer.encode_chat`, which takes the marks out of it.

        Args:
            messages: each with a "role" and a "content": a string, None (empty), or a list of text parts, which are
                joined without anything between them.
            add_generation_prompt: end with the beginning of the assistant's answer.
            tools: JSON schemas of functions that the model may call.
            continue_final_message: end within the last message, for the model to continue it.
            extra: further variables for the template.
            allow_special: special tokens in messages, tools and extra are special. By default they are text: nobody
                can end a turn or begin another one by typing.

        Raises:
            InvalidRequest: names the field: a message or part of an unknown form, no template, a template that
                refuses these messages.
        """
        template = self._choose(tools)
        if continue_final_message and add_generation_prompt:
            raise InvalidRequest(
                "continue_final_message and add_generation_prompt are both true: a prompt ends either within the last "
                "message or with a new one; set add_generation_prompt to false",
                field="continue_final_message",
            )
        # Marks that a user typed are doubled either way, so that `encode_chat` gives them back.
        shield = SpecialText(()).shield if allow_special else self._special_text.shield
        plain = _plain_messages(messages, shield)
        own = {
            "messages": plain,
            "tools": _shielded(tools, shield, "tools") if tools else None,
            "add_generation_prompt": add_generation_prompt,
        }
        context = {"documents": None, **_checked_extra(extra, {*own, *self._special_tokens}, shield)}
        context.update(self._special_tokens, **own)
        if not continue_final_message:
            return _render(template, context)
        plain[-1]["content"] += _CONTINUE_HERE + " "
        return _cut_at_mark(_render(template, context))

    def _choose(self, tools: object) -> jinja2.Template:
        compiled = self._compiled.get(TOOL_TEMPLATE) if tools else None
        compiled = compiled or self._compiled.get(DEFAULT_TEMPLATE)
        if compiled is None:
            raise InvalidRequest(
                "messages cannot be rendered: this model has no chat template; start the server with --chat-template "
                "FILE, or send a prompt to /v1/completions",
                field="messages",
            )
        if isinstance(compiled, str):
            raise InvalidRequest(
                f"messages cannot be rendered: the model's chat template is broken ({compiled}); start the server with "
                f"--chat-template FILE",
                field="messages",
            )
        return compiled

    def __repr__(self) -> str:
        return f"ChatTemplate({', '.join(sorted(self._compiled)) or 'none'})"


def _environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    return environment


def _compile(environment: ImmutableSandboxedEnvironment, source: str) -> jinja2.Template | str:
    """The template, or what is wrong with it: a model with a broken one can still complete prompts."""
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        line = f" at line {error.lineno}" if isinstance(error, jinja2.TemplateSyntaxError) else ""
        return f"{error}{line}"


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own tojson escapes <, > and & for HTML, which a model would read as it stands.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> NoReturn:
    raise _TemplateRaised(message)


def _render(template: jinja2.Template, context: Mapping[str, object]) -> str:
    try:
        return template.render(context)
    except _TemplateRaised as error:
        raise InvalidRequest(
            f"messages were refused by the chat template: {error}", field="messages"
        ) from error
    except Exception as error:  # a template is a program: it may raise anything
        raise InvalidRequest(
            f"messages cannot be rendered by the chat template: {type(error).__name__}: {error}",
            field="messages",
        ) from error


def _cut_at_mark(rendered: str) -> str:
    """Everything before the mark, trimmed if the template trims messages: then the space behind the mark is gone."""
    position = rendered.rfind(_CONTINUE_HERE)
    if position < 0:
        raise InvalidRequest(
            "continue_final_message is true, but the chat template does not show the last message",
            field="messages",
        )
    before, behind = rendered[:position], rendered[position + 1 :]
    return before if behind.startswith(" ") else before.rstrip()


def _plain_messages(messages: Sequence[Message], shield: Callable[[str], str]) -> list[dict[str, Any]]:
    """Copies for the template, their contents as strings."""
    if not messages:
        raise InvalidRequest("messages is empty, at least one is needed", field="messages")
    plain = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, Mapping):
            raise InvalidRequest(
                f"{where} is {message!r}, expected an object with role and content", field=where
            )
        if not isinstance(message.get("role"), str):
            raise InvalidRequest(
                f"{where}.role is {message.get('role')!r}, expected a string like 'user'",
                field=f"{where}.role",
            )
        copy = _shielded(message, shield, where)
        copy["content"] = shield(_content_text(message.get("content"), f"{where}.content"))
        plain.append(copy)
    return plain


def _content_text(content: object, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise InvalidRequest(
            f"{where} is {content!r}, expected a string, null or a list of text parts", field=where
        )
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text":
            found = f"of type {kind!r}" if kind is not None else f"{part!r}"
            raise InvalidRequest(
                f"{where}[{index}] is {found}, this model takes parts of type 'text' only",
                field=f"{where}[{index}]",
            )
        if not isinstance(part.get("text"), str):
            raise InvalidRequest(
                f"{where}[{index}].text is {part.get('text')!r}, expected a string",
                field=f"{where}[{index}].text",
            )
        texts.append(part["text"])
    return "".join(texts)


def _checked_extra(
    extra: Mapping[str, object] | None, reserved: set[str], shield: Callable[[str], str]
) -> dict[str, object]:
    taken = reserved & set(extra or ())
    if taken:
        raise InvalidRequest(
            f"chat_template_kwargs has {min(taken)!r}, which the server sets itself",
            field="chat_template_kwargs",
        )
    return {key: _shielded(value, shield, "chat_template_kwargs") for key, value in (extra or {}).items()}


def _shielded(value: Any, shield: Callable[[str], str], where: str, depth: int = 0) -> Any:
    """A copy of JSON data with every string shielded, keys too: a template may print them."""
    if depth > MAX_NESTING:
        raise InvalidRequest(f"{where} is nested more than {MAX_NESTING} deep", field=where)
    if isinstance(value, str):
        return shield(value)
    if isinstance(value, Mapping):
        return {shield(str(key)): _shielded(item, shield, where, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_shielded(item, shield, where, depth + 1) for item in value]
    return value
