"""Translation over HTTP: LibreTranslate's interface, DeepL's, and our own, over a batching queue a model."""
