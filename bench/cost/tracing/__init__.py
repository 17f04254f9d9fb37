"""Records what torch dispatches during a training step, and the module that it belongs to."""
