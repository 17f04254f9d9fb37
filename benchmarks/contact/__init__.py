"""What this project claims of a device, and the device that it is checked on."""
