"""The radix tree over token prefixes: which KV pages hold which tokens, and which may go."""
