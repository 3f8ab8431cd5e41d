"""Text to token ids and back: tokenizers, vocabularies, normalization, sentence splitting."""
