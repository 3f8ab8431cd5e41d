"""Fault injection in real training runs: what is left is complete, and resuming gives the same model."""
