"""Numbers ↔ stored planes, for the nine tensor formats. NumPy only, a block of rows at a time.

``rows`` is the door: encode, decode and validate by format name. One module per kind of format does the work
(``direct``, ``grouped``, ``row_scaled``, ``block_scaled``) on ``minifloats``. Plane names and sizes come from
``ninfer.artifact.layouts``. Knows nothing of files.
"""

from ninfer.artifact.codecs.block_scaled import weight_divisor
from ninfer.artifact.codecs.rows import decode_rows, encode_divisor, encode_rows, validate_rows

__all__ = ["decode_rows", "encode_divisor", "encode_rows", "validate_rows", "weight_divisor"]
