"""Other programs that train the same model, and how `training_speed.py` runs and measures them."""
