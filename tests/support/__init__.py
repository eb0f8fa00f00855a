"""Builders and fakes that several test rooms share."""
