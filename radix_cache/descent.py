"""The walk down the tree: the one place where keys are compared."""

from __future__ import annotations

from radix_cache.key import RadixKey, common_prefix_bytes
from radix_cache.tree_node import TreeNode


def descend(
    start: TreeNode, key: RadixKey, end: int, stride: int, offset: int = 0
) -> tuple[list[TreeNode], int, TreeNode | None, int]:
    """Walk down along `key.data[:end]`, in whole pages of `stride` bytes, changing nothing.

    Args:
        start: where to begin: the root, or a node that ends at `offset` bytes of the key.

    Returns:
        The nodes wholly on the key; the bytes matched; the node in which the match ends, if it ends inside
        one; and how many bytes of that node match (at least a page).
    """
    data = key.data
    path: list[TreeNode] = []
    append, startswith = path.append, data.startswith
    node = _child(start, data[offset : offset + stride] + (b"" if offset else key.salt))
    while node is not None and offset < end:
        tokens = node.tokens
        after = offset + len(tokens)
        if after > end or not startswith(tokens, offset):
            if not startswith(node.edge[:stride], offset):
                break
            common = common_prefix_bytes(data, offset, tokens, min(after, end) - offset)
            common -= common % stride
            return path, offset + common, node, common
        append(node)
        offset = after
        children = node.children
        node = node.only_child if children is None else children.get(data[after : after + stride])
    return path, offset, None, 0


def _child(parent: TreeNode, edge: bytes) -> TreeNode | None:
    return parent.only_child if parent.children is None else parent.children.get(edge)
