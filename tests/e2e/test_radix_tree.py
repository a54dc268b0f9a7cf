"""A real server shows its tree: to programs, in a shell, as a page."""

from __future__ import annotations

import subprocess

import orjson

from tests.e2e.server_process import TWINLOOP, ServerProcess, body_of

RULES = "You are a guide to a small museum of clocks. Answer in one short sentence, and never guess. " * 4
QUESTIONS = (
    "When do you open on Sundays, and may I bring my old dog along with me, please?",
    "Where is the <b>oldest</b> clock of them all, and who was it that built it for the town?",
)


def tree_command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TWINLOOP, "tree", *words], capture_output=True, text=True, check=False)


def test_what_has_been_asked_is_in_the_tree(server: ServerProcess) -> None:
    assert server.http.post("/flush_cache").status_code == 200
    for question in QUESTIONS:
        server.gen(RULES + question, max_new_tokens=1)
    tree = server.http.get("/radix_tree", params={"head": 256}).json()
    stats = server.stats()
    assert tree["num_tokens"] == stats["num_cached_tokens"]
    assert sum(node["num_tokens"] for node in tree["nodes"]) == tree["num_tokens"]
    top, *rest = tree["nodes"]
    assert RULES.startswith(top["text"]) and top["hits"] == 1
    assert [node["parent"] for node in rest] == [0, 0]
    ids = server.http.post("/tokenize", json={"prompt": RULES + QUESTIONS[1]}).json()["tokens"]
    path = top["head_ids"] + rest[1]["head_ids"]
    assert path[: len(ids)] == ids[: len(path)]
    assert all(not node["lock_ref"] and not node["pending"] for node in tree["nodes"])


def test_a_running_request_locks_its_path(server: ServerProcess) -> None:
    with server.stream("/generate", body_of(RULES + QUESTIONS[0], max_new_tokens=400)) as events:
        next(events)
        nodes = server.http.get("/radix_tree").json()["nodes"]
        assert any(node["lock_ref"] for node in nodes)


def test_the_command_prints_the_tree(server: ServerProcess) -> None:
    assert server.http.post("/flush_cache").status_code == 200
    for question in QUESTIONS:
        server.gen(RULES + question, max_new_tokens=1)
    printed = tree_command("--url", server.url)
    assert (printed.returncode, printed.stderr) == (0, "")
    head, top, *below = printed.stdout.splitlines()
    assert head.startswith("3 nodes, ")
    assert top.startswith("└─ ") and "You are a guide" in top
    assert [line[:5] for line in below] == ["   ├─", "   └─"]
    shallow = tree_command("--url", server.url + "/", "--depth", "1", "--head", "2")
    assert "2 below not shown" in shallow.stdout and "guide" not in shallow.stdout
    assert orjson.loads(tree_command("--url", server.url, "--json").stdout)["num_nodes"] == 3
    page = server.http.get("/radix_tree.html")
    assert page.status_code == 200
    assert "&lt;b&gt;oldest" in page.text and "<b>" not in page.text


def test_the_command_says_what_is_wrong(server: ServerProcess) -> None:
    refused = tree_command("--url", server.url, "--nodes", "9999")
    assert refused.returncode == 1 and "nodes" in refused.stderr and "1000" in refused.stderr
    nobody = tree_command("--url", "http://127.0.0.1:9")
    assert nobody.returncode == 1 and "twinloop serve" in nobody.stderr
    assert len(nobody.stderr.splitlines()) == 1
