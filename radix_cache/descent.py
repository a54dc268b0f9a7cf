"""The walk down the tree: the one place where keys are compared."""

from __future__ import annotations

from radix_cache.key import RadixKey, common_prefix_bytes
from radix_cache.tree_node import TreeNode


def descend(
    root: TreeNode, key: RadixKey, end: int, stride: int
) -> tuple[list[TreeNode], int, TreeNode | None, int]:
    """Walk down along `key.data[:end]`, in whole pages of `stride` bytes, changing nothing.

    Returns:
        The nodes wholly on the key; the bytes matched; the node in which the match ends, if it ends inside
        one; and how many bytes of that node match (at least a page).
    """
    data = key.data
    path: list[TreeNode] = []
    append, startswith = path.append, data.startswith
    offset = 0
    node = _first_child(root, data[:stride] + key.salt)
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


def _first_child(root: TreeNode, edge: bytes) -> TreeNode | None:
    assert root.children is not None
    return root.children.get(edge)
