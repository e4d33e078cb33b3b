"""The parts of vLLM that dws.vllm uses, with vLLM's names and its way to add an extension to a worker.
No inference: a test provides the model and the forward pass."""

__version__ = "0.32.0+fake"
