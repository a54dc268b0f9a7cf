"""The control thread's room: requests, scheduling policy, leases of KV pages, and their release."""
