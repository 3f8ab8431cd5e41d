"""Search: from a model that names the next word to whole translations."""
