"""The parts of SGLang that dws.sglang uses, with SGLang's names and its way to call a custom weight
loader. No inference: a test provides the model and the forward pass."""

__version__ = "0.5.9+fake"
