"""From pairs to a trained model: data, loss, schedule, loop, checkpoints."""
