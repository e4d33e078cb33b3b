"""Finds the tensors that a torch module holds beside its parameters and buffers, through all
objects that it holds: tensors that share memory with a weight (dws.held.aliases), and copies of
weights (dws.held.copies)."""
