"""Devices: what is known about them, their time and their memory."""
