"""What a training step is made of: device, precision, model, inputs, and the window around it."""
