"""Sentence pairs on their way from files to batches of token ids."""
