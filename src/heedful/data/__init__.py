"""Sentence pairs: file formats, cleaning, splits, token datasets, batches."""
