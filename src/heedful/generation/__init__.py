"""Decoding: greedy and beam search, sampling, constrained search, ensembles."""
