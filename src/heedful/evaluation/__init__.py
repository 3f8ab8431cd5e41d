"""Translation quality metrics."""
