from __future__ import annotations

from dataclasses import fields

import pytest

from srt.core.config import Config
from srt.core.errors import ConfigError
from srt.core.option import flag
from srt.server.arguments import parse_config, serve_parser
from srt.server.generate_command import generate_parser


def parse(*words: str) -> Config:
    config, _ = parse_config(serve_parser(), words)
    return config


def test_no_options_mean_the_defaults() -> None:
    assert parse() == Config()


def test_every_field_is_an_option_with_its_help_and_default() -> None:
    text = " ".join(serve_parser().format_help().split())
    for group in fields(Config):
        for option in fields(getattr(Config(), group.name)):
            assert flag(option.name) in text
            assert " ".join(option.metadata["help"].split()) in text
    assert "(default: 30000)" in text
    assert "(default: 30.0 seconds)" in text
    assert "(default: yes)" in text


def test_values_reach_their_fields_in_their_types() -> None:
    config = parse(
        *("some/model", "--page-size", "1", "--no-radix-cache", "--mem-fraction", "0.5", "--log-requests"),
        *("--overlap", "off", "--max-total-tokens", "4096", "--chat-template", "t.jinja"),
    )
    assert config == Config.from_flat(
        model="some/model",
        page_size=1,
        radix_cache=False,
        mem_fraction=0.5,
        log_requests=True,
        overlap="off",
        max_total_tokens=4096,
        chat_template="t.jinja",
    )
    assert parse("--model", "m").model.model == "m"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--page-size", "x"], "--page-size"),
        (["--overlap", "maybe"], "--overlap"),
        (["--pagesize", "1"], "--pagesize"),
        (["--page", "1"], "--page"),
        (["a", "--model", "b"], "twice"),
        (["a", "b"], "b"),
    ],
)
def test_what_is_no_option_is_wrong_usage(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        parse(*words)
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


def test_values_outside_their_limits_are_config_errors() -> None:
    with pytest.raises(ConfigError, match=r"--page-size is 0.*at least 1"):
        parse("--page-size", "0")


def test_generate_takes_the_engines_options_and_its_own() -> None:
    config, arguments = parse_config(
        generate_parser(), ["hello", "--page-size", "1", "--stop", "a", "--stop", "b"]
    )
    assert config == Config.from_flat(page_size=1)
    assert (arguments.prompt, arguments.stop, arguments.chat) == ("hello", ["a", "b"], False)
    with pytest.raises(SystemExit):
        parse_config(generate_parser(), ["hello", "--port", "1"])
