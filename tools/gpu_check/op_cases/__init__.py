"""Cases of the op table: an operation beside the reference's in float64, on any device and in any sizes."""
