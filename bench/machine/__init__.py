"""What a run was measured on: the machine, the software, and the device."""
