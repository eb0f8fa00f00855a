"""The operations of the fast engine: one folder each with its contract, ``cpu.py`` and its twin's name.

``vector.py`` emits explicit vector code, ``views.py`` and ``team.py`` are memory and threads of a round.
Importing this package points Numba's cache at a directory keyed by these sources (``cache.py``).
"""

from ninfer.fast.ops.cache import use_keyed_directory

use_keyed_directory()
