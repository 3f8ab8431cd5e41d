"""Figures: attention maps, the lecture's illustrations, and training curves; each function returns a Figure."""
