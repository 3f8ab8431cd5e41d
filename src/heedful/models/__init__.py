"""The Transformer of the paper and its variants."""
