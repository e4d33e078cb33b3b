"""As much of SGLang as dws.sglang touches, with its names and its way to call a custom weight loader. No
inference: a test brings the model and what a forward pass is."""

__version__ = "0.5.9+fake"
