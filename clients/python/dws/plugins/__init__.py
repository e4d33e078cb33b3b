"""The decisions of the engine plugins (dws.vllm, dws.sglang) that do not need their engine. None of
these modules imports one.

canonical, mapping: which part of a checkpoint's tensors is where in a rank's parameters.
checkpoint: whether live parameters have the values that the mapping says.
fingerprint: whether live parameters were written.
layers: what else must be known of a model before its parameters are written in place.
processed, refreshed: what the engine makes of weights, and how it is made again after a commit.
step_gate, agreement: forward passes inside the lease, on all ranks or on none.
attach: all of this for one rank.
"""
