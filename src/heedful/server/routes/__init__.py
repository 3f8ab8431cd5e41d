"""HTTP routes: LibreTranslate, DeepL, native, traces, operations."""
