"""A model as one ONNX graph, and bridges to other tools."""
