"""The engine's memory and who owns each part: KV pages, state images, the ledger of both.

``pages.py`` pools and free pages, ``states.py`` state images by slot, ``ledger.py`` what start-up prints.
"""
