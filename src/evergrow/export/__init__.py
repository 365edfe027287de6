"""Export a learner: ONNX graphs, the Hugging Face Hub, MLflow and annotation tools."""
