"""`twinloop tree`: what a running server has cached, as an indented tree."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import msgspec
import orjson

from srt.core.errors import InvalidRequest, TwinloopError, Unavailable
from srt.server.placement import namespace_label
from srt.server.tree_rows import ShownNode, ShownTree, depth_first, one_line, plural

SECONDS = 30.0

DESCRIPTION = """\
Show what a running server has cached: the top of its radix tree, one line a node.

A node is a run of tokens that follows its parent's; a request that begins with the tokens along a path from the top
does not compute them again. A line says how many tokens the node has, how often a request has found it, what holds it
now, and how its text begins."""

EPILOG = """\
words in a line:
  hits      requests that found it in the cache
  locks     requests that hold it, or something below it, now: it cannot be evicted
  unused N  operations of the tree since its last use: the policy lru evicts the largest first
  pending   a step that computes it is still on its way
  [name]    the namespace: requests with another extra_key or cache_salt never match it

examples:
  twinloop tree                                  the tree of the server on 127.0.0.1:30000
  twinloop tree --depth 1 --nodes 50             only what stands right at the top
  twinloop tree --url http://gpu7:8000 --json    another server, for a program

The same as a page that refreshes itself: http://127.0.0.1:30000/radix_tree.html"""


def main(arguments: Sequence[str]) -> int:
    """Prints the tree.

    Raises:
        Unavailable: no server answers, or it has no engine now.
        InvalidRequest: a limit is out of range.
    """
    options = tree_parser().parse_args(arguments)
    asked = {name: getattr(options, name) for name in ("nodes", "depth", "head")}
    body = fetch(options.url, {name: value for name, value in asked.items() if value is not None})
    if options.json:
        print(orjson.dumps(orjson.loads(body), option=orjson.OPT_INDENT_2).decode())
        return 0
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in tree_lines(read_tree(options.url, body)):
        print(line if width is None or len(line) <= width else line[: width - 1] + "\N{HORIZONTAL ELLIPSIS}")
    return 0


def tree_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="twinloop tree",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--url", default="http://127.0.0.1:30000", help="where the server listens (default: %(default)s)"
    )
    parser.add_argument("--depth", type=int, metavar="N", help="levels below the top (default: all)")
    parser.add_argument(
        "--nodes",
        type=int,
        metavar="N",
        help="nodes at most, the upper ones first (default: 200, at most 1000)",
    )
    parser.add_argument(
        "--head", type=int, metavar="N", help="tokens of text for each node (default: 24, at most 256)"
    )
    parser.add_argument("--json", action="store_true", help="print what GET /radix_tree answers")
    return parser


def fetch(url: str, query: dict[str, int]) -> bytes:
    """What GET /radix_tree of the server at `url` answers.

    Raises:
        Unavailable, InvalidRequest: as `main`.
    """
    try:
        answer = httpx.get(f"{url.rstrip('/')}/radix_tree", params=query, timeout=SECONDS)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise Unavailable(
            f"no server answers at {url} ({error}); `twinloop serve` starts one, --url names another"
        ) from None
    if answer.status_code != httpx.codes.OK:
        raise _refusal(url, answer)
    return answer.content


def read_tree(url: str, body: bytes) -> ShownTree:
    """The tree that a server sent.

    Raises:
        Unavailable: it is not what a Twinloop server of this version sends.
    """
    try:
        return msgspec.json.decode(body, type=ShownTree)
    except msgspec.MsgspecError as error:
        raise Unavailable(f"what {url} answers is no tree of this version of Twinloop: {error}") from None


def tree_lines(tree: ShownTree) -> Iterator[str]:
    """The tree as text, one line a node."""
    size = plural(tree.num_tokens, "token")
    yield f"{plural(tree.num_nodes, 'node')}, {size} cached, pages of {tree.page_size}"
    if tree.num_shown < tree.num_nodes:
        yield f"the upper {tree.num_shown:,} are shown: --nodes and --depth show more or less"
    bars = [""]
    for node, is_last in depth_first(tree.nodes):
        del bars[node.depth :]
        yield f"{''.join(bars)}{'└─' if is_last else '├─'} {describe(node)}"
        bars.append("   " if is_last else "│  ")


def describe(node: ShownNode) -> str:
    """One node in words."""
    parts = [plural(node.num_tokens, "token"), plural(node.hits, "hit"), f"unused {node.age:,}"]
    if node.lock_ref:
        parts.append(plural(node.lock_ref, "lock"))
    if node.pending:
        parts.append("pending")
    if node.depth == 1 and node.namespace is not None:
        parts.append(f"[{one_line(namespace_label(node.namespace))[:60]}]")
    if node.num_hidden:
        parts.append(f"{node.num_hidden:,} below not shown")
    text = one_line(node.text)
    more = "…" if len(node.head_ids) < node.num_tokens else ""
    return f"{', '.join(parts)}  {text}{more}" if text else ", ".join(parts)


def _refusal(url: str, answer: httpx.Response) -> TwinloopError:
    """What a server that does not show its tree says about it."""
    try:
        error: Any = orjson.loads(answer.content)["error"]["message"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return Unavailable(f"{url} answers {answer.status_code} and is no Twinloop server of this version")
    kind = InvalidRequest if answer.status_code == httpx.codes.BAD_REQUEST else Unavailable
    return kind(f"{url}: {error}")
