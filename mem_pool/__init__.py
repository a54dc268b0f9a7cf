"""KV memory: the page allocator, the pool of keys and values, and how large it may be."""
