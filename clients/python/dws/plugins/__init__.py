"""The decisions of the engine plugins (dws.vllm, dws.sglang) that do not need their engine. None of
these modules imports an engine.

canonical, mapping: the place of each part of a checkpoint's tensors in a rank's parameters.
checkpoint: checks that live parameters have the values that the mapping gives.
fingerprint: finds out whether live parameters were written.
layers: everything else that must be known about a model before its parameters are written in place.
processed, refreshed: the tensors that the engine makes from weights, and how they are made again
after a commit.
step_gate, agreement: forward passes inside the lease, on all ranks or on none.
attach: all of this for one rank.
"""
