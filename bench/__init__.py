"""Benches: seeded workloads, clients that load a running engine, and the tables that they print."""
