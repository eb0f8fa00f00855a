"""The engine's memory and who owns each part: KV pages, state images, the ledger of both.

``pages.py`` pools and owners of pages, ``states.py`` state images by slot, ``lanes.py`` what each sequence
holds and shares, ``ledger.py`` what start-up prints.
"""
