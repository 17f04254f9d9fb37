"""Steps of a trace that anyone recorded: their time, their idle time by cause, their ops."""
