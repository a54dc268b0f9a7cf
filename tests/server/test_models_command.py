"""`twinloop models` tells what the registry and the files say, nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from compute_loop.models.gguf_file import GGML_TYPES
from compute_loop.models.registry import BUILDERS
from srt.core.errors import ModelError
from srt.server.models_command import main


def test_the_list_has_every_family_and_format(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    for architecture in BUILDERS:
        (line,) = (line for line in text.splitlines() if line.startswith(f"  {architecture} "))
        assert len(line.split()) > 1, "a family says what it is"
    assert all(kind.name in text for kind in GGML_TYPES.values())


@pytest.mark.e2e
def test_the_default_model_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    facts = dict(
        line.strip().split(maxsplit=1) for line in text.partition("default model:\n")[2].splitlines()
    )
    place = Path(facts["place"].rpartition(" (")[0])
    assert place.is_file()
    assert facts["architecture"].startswith("LlamaForCausalLM, 30 layers")
    assert facts["context"] == "8192 tokens"


def test_a_model_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"there is no file or directory"):
        main([str(tmp_path / "none.gguf")])


def test_an_unknown_architecture_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["OtherForCausalLM"]}', encoding="utf-8")
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelError, match="OtherForCausalLM"):
        main([str(tmp_path)])
