from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import transformers

from srt.core.errors import ConfigError, InvalidRequest
from srt.server.chat_template import ChatTemplate
from srt.server.special_text import SpecialText, unshield
from srt.server.tokenizer import Tokenizer
from tests.server import tiny_tokenizers as tiny
from tests.server.text_corpus import SENTENCES

TRIMMING = (
    "{{ bos_token }}{% for message in messages %}[{{ message.role }}] {{ message.content | trim }}{{ eos_token }}\n"
    "{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"
)

RICH = """\
{%- macro show(call) -%}
<call>{{ call.function.name }}({{ call.function.arguments | tojson }})</call>
{%- endmacro -%}
{%- set state = namespace(turns=0) -%}
{%- if tools %}
Tools:
    {%- for tool in tools %}
{{ tool | tojson }}
{{ tool.function | tojson(indent=2) }}
    {%- endfor %}
{% endif -%}
{%- for message in messages %}
    {%- if message.role not in ['system', 'user', 'assistant', 'tool'] %}
        {{- raise_exception('Unknown role ' + message.role) }}
    {%- endif %}
    {%- if message.role == 'system' and not loop.first %}{% continue %}{% endif %}
    {%- set state.turns = state.turns + 1 %}
    {%- if message.role == 'assistant' %}
{% generation %}{{ message.content }}{% for call in message.tool_calls or [] %}{{ show(call) }}{% endfor %}
        {%- endgeneration %}
    {%- else %}
{{ '<|im_start|>' + message['role'] }}: {{ message['content'].split('|')[-1] }}<|im_end|>
    {%- endif %}
    {%- if state.turns > 8 %}{% break %}{% endif %}
{%- endfor %}
{%- if mood is defined %} mood={{ mood }}{% endif %}
{%- if documents is none %} no documents{% endif %}
{%- if add_generation_prompt %} <|im_start|>assistant{% endif %}
"""

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Wetter für <Zürich> & more",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]

CALL = {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Zürich <b>"}}}

CONVERSATIONS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "hello"}],
    [{"role": "system", "content": " be brief "}, {"role": "user", "content": "a|b\n\n"}],
    [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]},
        {"role": "tool", "content": '{"degrees": 12}', "name": "get_weather"},
        {"role": "system", "content": "late"},
        {"role": "assistant", "content": "It is cold. "},
    ],
    [{"role": "user", "content": text} for text in SENTENCES],
]


def make(source: str, now: Callable[[], datetime] = datetime.now) -> ChatTemplate:
    names = {"bos_token": "<s>", "eos_token": "</s>"}
    return ChatTemplate({"default": source}, names, SpecialText(tiny.SPECIAL), now)


def render_in_transformers(source: str, messages: list[dict[str, Any]], **options: Any) -> str:
    make_reference: Any = transformers.PreTrainedTokenizerFast
    reference = make_reference(
        tokenizer_object=tiny.byte_level(), bos_token="<s>", eos_token="</s>", chat_template=source
    )
    rendered: str = reference.apply_chat_template(messages, tokenize=False, **options)
    return rendered


@pytest.mark.parametrize("source", [tiny.CHATML, TRIMMING, RICH], ids=["chatml", "trimming", "rich"])
@pytest.mark.parametrize("conversation", range(len(CONVERSATIONS)))
@pytest.mark.parametrize("prompt", [True, False])
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["no tools", "tools"])
def test_texts_equal_transformers(source: str, conversation: int, prompt: bool, tools: Any) -> None:
    messages = CONVERSATIONS[conversation]
    expected = render_in_transformers(
        source, messages, add_generation_prompt=prompt, tools=tools, mood="good"
    )
    rendered = make(source).render(messages, prompt, tools, extra={"mood": "good"})
    assert unshield(rendered) == expected


@pytest.mark.parametrize("source", [tiny.CHATML, TRIMMING, RICH], ids=["chatml", "trimming", "rich"])
@pytest.mark.parametrize("content", ["It is", "It is ", "It is \n", ""])
def test_continuing_the_last_message_equals_transformers(source: str, content: str) -> None:
    messages = [{"role": "user", "content": "is it?"}, {"role": "assistant", "content": content}]
    expected = render_in_transformers(
        source, messages, add_generation_prompt=False, continue_final_message=True
    )
    rendered = make(source).render(messages, add_generation_prompt=False, continue_final_message=True)
    assert rendered == expected
    assert rendered.rstrip().endswith(content.rstrip())


def test_the_date_comes_from_the_clock() -> None:
    template = make("{{ strftime_now('%d %b %Y') }}", now=lambda: datetime(2031, 2, 3, 4, 5))
    assert template.render([{"role": "user", "content": ""}]) == "03 Feb 2031"


def test_json_escapes_nothing() -> None:
    template = make(
        "{{ messages[0].x | tojson }} {{ messages[0].x | tojson(sort_keys=true, separators=(',', ':')) }}"
    )
    messages = [{"role": "user", "content": "", "x": {"b": "<ü&'>", "a": [1, None, True]}}]
    assert template.render(messages) == (
        """{"b": "<ü&'>", "a": [1, null, true]} {"a":[1,null,true],"b":"<ü&'>"}"""
    )


# --- contents ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ([], ""),
        ("plain", "plain"),
        ([{"type": "text", "text": "one "}, {"type": "text", "text": "two"}], "one two"),
    ],
)
def test_b60_contents(content: object, text: str) -> None:
    messages = [{"role": "user", "content": content}]
    assert make("{{ messages[0].content }}").render(messages) == text
    assert messages == [{"role": "user", "content": content}], "the caller's messages are left alone"


def test_a_message_without_content_is_empty() -> None:
    assert make("<{{ messages[0].content }}>").render([{"role": "assistant"}]) == "<>"


@pytest.mark.parametrize(
    ("messages", "field", "message"),
    [
        ([], "messages", "messages is empty"),
        (["hi"], "messages[0]", r"messages\[0\] is 'hi', expected an object"),
        ([{"content": "x"}], "messages[0].role", r"messages\[0\]\.role is None"),
        ([{"role": "user", "content": 5}], "messages[0].content", r"content is 5, expected a string"),
        (
            [
                {"role": "user", "content": ""},
                {"role": "user", "content": [{"type": "image_url", "image_url": {}}]},
            ],
            "messages[1].content[0]",
            r"messages\[1\]\.content\[0\] is of type 'image_url', this model takes parts of type 'text' only",
        ),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]", r"content\[0\] is 'x'"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text", r"text is None"),
    ],
)
def test_b60_bad_messages_are_refused_by_name(messages: list[Any], field: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        make(tiny.CHATML).render(messages)
    assert caught.value.field == field and caught.value.status == 400


def test_deep_nesting_is_refused() -> None:
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(InvalidRequest, match=r"messages\[0\] is nested more than 64 deep"):
        make(tiny.CHATML).render([{"role": "user", "content": "", "extra": deep}])


# --- templates --------------------------------------------------------------------------------------------------------


def test_b60_a_model_without_a_template_says_what_to_do() -> None:
    with pytest.raises(InvalidRequest, match=r"no chat template; start the server with --chat-template FILE"):
        ChatTemplate({}, {}, SpecialText([])).render([{"role": "user", "content": "x"}])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "{{ raise_exception('roles must alternate') }}",
            "refused by the chat template: roles must alternate",
        ),
        ("{{ messages[7].content }}", "UndefinedError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{% for i in range(1000000) %}{% endfor %}", "OverflowError"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
    ],
)
def test_a_template_that_fails_is_a_bad_request(source: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        make(source).render([{"role": "user", "content": "x"}])
    assert caught.value.field == "messages"


def test_a_broken_template_of_a_model_hurts_chats_only() -> None:
    template = make("{% if %}")
    with pytest.raises(
        InvalidRequest, match=r"the model's chat template is broken \(.* at line 1\).*--chat-template"
    ):
        template.render([{"role": "user", "content": "x"}])


def test_tools_get_the_template_for_tools() -> None:
    template = ChatTemplate({"default": "plain", "tool_use": "tools"}, {}, SpecialText([]))
    messages = [{"role": "user", "content": "x"}]
    assert template.render(messages) == template.render(messages, tools=[]) == "plain"
    assert template.render(messages, tools=TOOLS) == "tools"
    assert repr(template) == "ChatTemplate(default, tool_use)"


def test_a_template_from_a_file(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(tiny.save_directory(tiny.byte_level(), tmp_path))
    messages = [{"role": "user", "content": "x"}]
    assert ChatTemplate.for_tokenizer(tokenizer).render(messages).startswith("<|im_start|>user")
    file = tmp_path / "mine.jinja"
    file.write_text("{{ eos_token }}mine")
    assert ChatTemplate.for_tokenizer(tokenizer, file).render(messages) == "</s>mine"
    file.write_text("{% mine %}")
    with pytest.raises(ConfigError, match=r"--chat-template '.*mine\.jinja' is not a Jinja template"):
        ChatTemplate.for_tokenizer(tokenizer, file)
    with pytest.raises(ConfigError, match=r"--chat-template .*absent.* cannot be read"):
        ChatTemplate.for_tokenizer(tokenizer, tmp_path / "absent")


def test_options_that_contradict_each_other() -> None:
    with pytest.raises(
        InvalidRequest, match="continue_final_message and add_generation_prompt are both true"
    ):
        make(tiny.CHATML).render([{"role": "user", "content": "x"}], continue_final_message=True)
    with pytest.raises(InvalidRequest, match="the chat template does not show the last message"):
        make("nothing").render([{"role": "user", "content": "x"}], False, continue_final_message=True)


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "bos_token"])
def test_extra_variables_cannot_replace_the_servers_own(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"chat_template_kwargs has '{name}'") as caught:
        make(tiny.CHATML).render([{"role": "user", "content": "x"}], extra={name: "y"})
    assert caught.value.field == "chat_template_kwargs"
