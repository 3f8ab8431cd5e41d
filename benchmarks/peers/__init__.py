"""Other toolkits that train the same model; `training_speed.py` runs and measures them."""
