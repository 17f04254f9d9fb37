"""A sweep over the machines of a Ray cluster: each configuration to a node that has its device."""
