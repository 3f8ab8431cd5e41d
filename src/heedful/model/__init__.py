"""The Transformer of the paper, one file a part."""
