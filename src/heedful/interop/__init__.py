"""Other programs' formats: what a model can become, and come from."""
