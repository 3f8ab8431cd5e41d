"""Translation with a trained model: PyTorch and CTranslate2 backends, bulk translation."""
