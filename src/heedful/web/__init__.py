"""The web page and its standalone file."""
