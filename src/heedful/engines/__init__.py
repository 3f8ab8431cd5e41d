"""What runs a trained model: the same inputs and results, whatever computes them."""
