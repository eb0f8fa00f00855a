"""Control records on their way from pinned host memory to a device."""
