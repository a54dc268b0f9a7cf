"""GET /radix_tree and its page, in front of a real tree."""

from __future__ import annotations

from html.parser import HTMLParser

import numpy as np
import pytest

from radix_cache.key import RadixKey
from radix_cache.radix_cache import RadixCache
from srt.server.placement import Placement, namespace_label
from srt.server.tree_command import read_tree, tree_lines
from srt.server.tree_rows import ShownNode, depth_first, one_line
from tests.server.api_desk import ApiDesk, default_tokenizer, with_api

NASTY = "<script>alert('x')</script>\n\x1b[2J & \u202e evil"


def insert(cache: RadixCache, text: str, namespace: str | None = None) -> int:
    ids = default_tokenizer().encode(text).astype(np.int32)
    first = cache.num_pages
    cache.insert(RadixKey(ids, namespace), np.arange(first, first + len(ids), dtype=np.int32))
    return len(ids)


def test_the_rows_of_a_tree() -> None:
    async def scenario(desk: ApiDesk) -> None:
        cache = desk.engine.cache
        lengths = [
            insert(cache, f"The clock of the museum {end}") for end in ("is old", "strikes twice a day")
        ]
        insert(cache, "secret", Placement.of("tenant", "salt", None).namespace)
        answer = await desk.http.get("/radix_tree", params={"head": 100})
        tree = answer.json()
        assert (tree["page_size"], tree["num_nodes"], tree["num_shown"]) == (1, 4, 4)
        assert tree["num_tokens"] == cache.num_pages
        shared, one, two = (tree["nodes"][at] for at in (0, 2, 3))
        if shared["namespace"] is not None:
            shared = tree["nodes"][1]
        assert (shared["text"], one["text"], two["text"]) == (
            "The clock of the museum",
            " is old",
            " strikes twice a day",
        )
        assert one["parent"] == two["parent"] == shared["id"]
        assert shared["parent"] is None and (shared["depth"], one["depth"]) == (1, 2)
        assert [node["start"] + node["num_tokens"] for node in (one, two)] == lengths
        assert (shared["num_children"], shared["num_hidden"]) == (2, 0)
        assert {node["namespace"] for node in tree["nodes"]} == {None, '["tenant","salt"]'}

    with_api(scenario)


def test_limits_of_a_view() -> None:
    async def scenario(desk: ApiDesk) -> None:
        for end in ("is old", "strikes twice a day", "stands still"):
            insert(desk.engine.cache, f"The clock of the museum {end}")
        for query, count, hidden in (({"depth": "1"}, 1, 3), ({"nodes": "3"}, 3, 1), ({"nodes": "1"}, 1, 3)):
            tree = (await desk.http.get("/radix_tree", params=query)).json()
            assert (tree["num_shown"], tree["nodes"][0]["num_hidden"]) == (count, hidden)
            assert (tree["num_nodes"], tree["num_tokens"]) == (4, desk.engine.cache.num_pages)
        bare = (await desk.http.get("/radix_tree", params={"head": "0"})).json()
        assert {(node["text"], *node["head_ids"]) for node in bare["nodes"]} == {("",)}

    with_api(scenario)


@pytest.mark.parametrize("path", ["/radix_tree", "/radix_tree.html"])
@pytest.mark.parametrize(
    ("field", "value", "limit"),
    [
        ("nodes", "0", "1"),
        ("nodes", "1001", "1000"),
        ("nodes", "many", "integer"),
        ("depth", "0", "1"),
        ("depth", "10001", "10000"),
        ("head", "-1", "0"),
        ("head", "257", "256"),
        ("deep", "1", "unknown"),
    ],
)
def test_a_wrong_limit_is_refused_by_name(path: str, field: str, value: str, limit: str) -> None:
    async def scenario(desk: ApiDesk) -> None:
        refused = await desk.http.get(path, params={field: value})
        assert refused.status_code == 400
        error = refused.json()["error"]
        assert error["field"] == field
        assert limit in error["message"]

    with_api(scenario)


class Page(HTMLParser):
    """What a browser would see: the texts of nodes, scripts, and every address that it would load."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.codes: list[str] = []
        self.scripts: list[str | None] = []
        self.loads: list[str] = []
        self._in_code = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        if tag == "code":
            self._in_code = True
            self.codes.append("")
        if tag == "script":
            self.scripts.append(named.get("nonce"))
        if tag in ("link", "img", "iframe", "script"):
            self.loads += [str(named[name]) for name in ("src", "href") if name in named]

    def handle_endtag(self, tag: str) -> None:
        if tag == "code":
            self._in_code = False

    def handle_data(self, data: str) -> None:
        if self._in_code:
            self.codes[-1] += data


def test_the_page_escapes_what_users_wrote_and_loads_nothing() -> None:
    async def scenario(desk: ApiDesk) -> None:
        empty = await desk.http.get("/radix_tree.html")
        assert "Nothing is cached yet" in empty.text
        insert(desk.engine.cache, NASTY, Placement.of("<b>tenant</b>", None, None).namespace)
        answer = await desk.http.get("/radix_tree.html", params={"head": "100"})
        assert answer.headers["content-type"].startswith("text/html")
        page = Page(answer.text)
        assert page.codes[0] == "<script>alert('x')</script>↵\\x1b[2J & \\u202e evil"
        (nonce,) = page.scripts
        assert nonce
        assert f"script-src 'nonce-{nonce}'" in answer.headers["content-security-policy"]
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert page.loads == [] and "url(" not in answer.text and "@import" not in answer.text
        assert "&lt;b&gt;tenant&lt;/b&gt;" in answer.text and "<b>" not in answer.text
        again = await desk.http.get("/radix_tree.html")
        assert Page(again.text).scripts != [nonce], "a nonce is used once"

    with_api(scenario)


def test_a_terminal_gets_no_control_characters() -> None:
    async def scenario(desk: ApiDesk) -> None:
        insert(desk.engine.cache, NASTY)
        insert(desk.engine.cache, "tenant's", Placement.of("a\x1b", "salt", None).namespace)
        body = (await desk.http.get("/radix_tree")).content
        lines = list(tree_lines(read_tree("here", body)))
        assert len(lines) == 3
        assert all(line.isprintable() for line in lines)
        assert "[a\\x1b + salted]" in lines[2] and "alert" in lines[1]

    with_api(scenario)


def node(place: int, parent: int | None, depth: int, hidden: int = 0) -> ShownNode:
    return ShownNode(place, parent, depth, 0, 16, 0, 2, 1, False, hidden, hidden, None, [5], f"n{place}")


def test_lines_show_who_hangs_below_whom() -> None:
    nodes = [node(0, None, 1), node(1, None, 1), node(2, 0, 2), node(3, 0, 2), node(4, 2, 3, hidden=7)]
    assert [(shown.id, last) for shown, last in depth_first(nodes)] == [
        (0, False),
        (2, False),
        (4, True),
        (3, True),
        (1, True),
    ]
    tree = read_tree(
        "here",
        b'{"page_size":16,"num_nodes":12,"num_tokens":1600,"num_shown":5,"nodes":['
        + b",".join(
            b'{"id":%d,"parent":%s,"depth":%d,"start":0,"num_tokens":16,"lock_ref":1,"hits":2,"age":1,"pending":false,'
            b'"num_children":%d,"num_hidden":%d,"namespace":null,"head_ids":[5],"text":"n%d"}'
            % (
                *(row.id, b"null" if row.parent is None else b"%d" % row.parent, row.depth),
                *(row.num_children, row.num_hidden, row.id),
            )
            for row in nodes
        )
        + b"]}",
    )
    words = "16 tokens, 2 hits, unused 1, 1 lock"
    assert list(tree_lines(tree)) == [
        "12 nodes, 1,600 tokens cached, pages of 16",
        "the upper 5 are shown: --nodes and --depth show more or less",
        f"├─ {words}  n0…",
        f"│  ├─ {words}  n2…",
        f"│  │  └─ {words}, 7 below not shown  n4…",
        f"│  └─ {words}  n3…",
        f"└─ {words}  n1…",
    ]


def test_one_line() -> None:
    assert one_line("a\tb\r\n\u2028é \N{SNOWMAN}") == "a⇥b\\r↵\\u2028é \N{SNOWMAN}"


def test_a_salt_is_not_shown() -> None:
    labels = [
        namespace_label(str(Placement.of(key, salt, None).namespace))
        for key, salt in (("tenant", None), (None, "secret"), ("tenant", "secret"))
    ]
    assert labels == ["tenant", "salted", "tenant + salted"]
    assert namespace_label("from elsewhere") == "from elsewhere"
