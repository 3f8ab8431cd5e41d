"""MarianMT (opus-mt) models, in and out."""
