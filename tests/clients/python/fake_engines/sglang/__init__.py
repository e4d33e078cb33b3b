"""The parts of SGLang 0.5.23 that dws.sglang uses, with SGLang's names. No inference: a test provides the
model and the forward pass."""

__version__ = "0.5.23"
