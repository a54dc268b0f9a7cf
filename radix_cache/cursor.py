"""How long are the cached prefixes of many keys, asked again and again: only what has changed is looked at."""

from __future__ import annotations

from collections.abc import Iterable

from radix_cache.descent import descend
from radix_cache.key import TOKEN_BYTES, RadixKey
from radix_cache.tree_node import TreeNode


class MatchCursor:
    """Thread: control. Remembers where the match of one key ended, so that the next question goes on from there.

    ::

        key   [0 ........... offset)[offset ........ matched)[matched .......
               whole nodes, the last  part of one more node,   not in the tree
               of them is `node`      `inside`                 the last time

    A node of the tree keeps its end for life: a split puts a new node above, and only a leaf is ever cut. So the
    first part still holds as long as `node` is linked and has the same bytes of tokens.

    Attributes:
        node: the deepest node wholly on the key; the root when there is none.
        edge: the page behind `node`, as its child's edge would be; None when the key may not match further.
        matched: bytes of the key that were in the tree.
    """

    __slots__ = ("_end", "_offset", "edge", "inside", "inside_tokens", "key", "matched", "node", "tokens")

    def __init__(self, root: TreeNode, key: RadixKey, end: int, stride: int) -> None:
        """`end` is how many bytes of the key may match, in whole pages of `stride` bytes."""
        self.key = key
        self._end = end
        self._offset = 0
        self.inside: TreeNode | None = None
        self._stand_on(root, 0, stride)

    def walk(self, root: TreeNode, stride: int) -> None:
        """Goes on from where it stands, or from the root when that place is gone."""
        node = self.node
        if node is not root and (node.parent is None or node.tokens is not self.tokens):
            self._stand_on(root, 0, stride)
        path, offset, inside, common = descend(self.node, self.key, self._end, stride, self._offset)
        if path:
            self._stand_on(path[-1], offset - common, stride)
        self.inside = inside
        self.inside_tokens = b"" if inside is None else inside.tokens
        self.matched = offset

    def _stand_on(self, node: TreeNode, offset: int, stride: int) -> None:
        self.node = node
        self.tokens = node.tokens
        self._offset = self.matched = offset
        self.inside = None
        self.inside_tokens = b""
        self.edge: bytes | None = None
        if offset < self._end:
            self.edge = self.key.data[offset : offset + stride] + (b"" if offset else self.key.salt)

    def __repr__(self) -> str:
        return f"MatchCursor({self.matched // TOKEN_BYTES} of {len(self.key)} tokens matched)"


def match_lengths(cursors: Iterable[MatchCursor], root: TreeNode, stride: int) -> list[int]:
    """Brings cursors up to date with the tree; how many tokens of each key match. Changes nothing in the tree.

    One loop without calls as long as nothing has changed: it is run over all waiting requests in every pass.
    """
    lengths: list[int] = []
    append = lengths.append
    for cursor in cursors:
        node = cursor.node
        inside = cursor.inside
        if node.tokens is not cursor.tokens or (node.parent is None and node is not root):
            cursor.walk(root, stride)
        elif inside is not None:
            if inside.parent is None or inside.tokens is not cursor.inside_tokens:
                cursor.walk(root, stride)
        elif node.children is None:
            child = node.only_child
            if child is not None and child.edge == cursor.edge:
                cursor.walk(root, stride)
        elif cursor.edge in node.children:
            cursor.walk(root, stride)
        append(cursor.matched // TOKEN_BYTES)
    return lengths
