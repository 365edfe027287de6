"""A model as one ONNX graph, and layers folded into one matrix where a bound allows it."""
