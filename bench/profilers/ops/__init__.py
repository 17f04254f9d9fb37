"""Time per op of a training step, joined with the cost model's FLOP and bytes of the same op."""
