"""As much of vLLM as dws.vllm touches, with its names and its way to add an extension to a worker. No
inference: a test brings the model and what a forward pass is."""

__version__ = "0.32.0+fake"
