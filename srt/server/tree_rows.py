"""The rows of a tree view, as GET /radix_tree sends them, and their order on a screen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

VISIBLE = {"\n": "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}", "\t": "\N{RIGHTWARDS ARROW TO BAR}"}


@dataclass(frozen=True, slots=True)
class ShownNode:
    """One node: the tokens ``[start, start + num_tokens)`` of every sequence that passes through it.

    Attributes:
        id: its place in `ShownTree.nodes`; `parent` is one of those, None: the root.
        depth: 1 below the root.
        lock_ref: how many requests and unwritten insertions keep it, or something below it, from eviction.
        hits: matches that passed through it.
        age: tree operations since it was last used.
        pending: a step that writes it is still on its way.
        num_hidden: children that the view leaves out, of `num_children`.
        head_ids: its first token ids, `text` is what they say.
    """

    id: int
    parent: int | None
    depth: int
    start: int
    num_tokens: int
    lock_ref: int
    hits: int
    age: int
    pending: bool
    num_children: int
    num_hidden: int
    namespace: str | None
    head_ids: list[int]
    text: str


@dataclass(frozen=True, slots=True)
class ShownTree:
    """The top of the tree, breadth first. `num_nodes` and `num_tokens` are of the whole tree."""

    page_size: int
    num_nodes: int
    num_tokens: int
    num_shown: int
    nodes: list[ShownNode]


def depth_first(nodes: Sequence[ShownNode]) -> Iterator[tuple[ShownNode, bool]]:
    """Each node before what is below it, and whether it is the last one shown of its parent."""
    children: dict[int | None, list[ShownNode]] = {}
    for node in nodes:
        children.setdefault(node.parent, []).append(node)
    stack = list(reversed(children.get(None, [])))
    while stack:
        node = stack.pop()
        yield node, node is children[node.parent][-1]
        stack.extend(reversed(children.get(node.id, [])))


def one_line(text: str) -> str:
    """Text for one line of a terminal or a page: what cannot be seen, or would move the cursor, is written out."""
    return "".join(
        character if character.isprintable() else VISIBLE.get(character, ascii(character)[1:-1])
        for character in text
    )


def plural(count: int, word: str) -> str:
    """ "1 node", "2,000 nodes"."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"
