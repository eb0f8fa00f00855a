"""Checks of the GPU engine: ahead-of-time compilation anywhere, op table, campaign and faults on a device."""
