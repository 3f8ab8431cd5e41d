"""The built-in English-French corpus: a grammar and its lexicon."""
