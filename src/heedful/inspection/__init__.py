"""Looking inside a trained model: every number is the model's own."""
