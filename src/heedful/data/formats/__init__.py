"""One module per file format that holds sentence pairs."""
