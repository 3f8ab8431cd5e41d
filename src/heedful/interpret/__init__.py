"""Inside a model: activations, traces, attention, attribution, figures."""
