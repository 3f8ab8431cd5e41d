"""From text to token ids and back, without losing a character."""
