"""The steps of the paper in numbers that can be checked by hand."""
