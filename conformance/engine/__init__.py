"""The fast engine against the oracle: drawn models and requests, compared at every position.

``draws.py`` draws, ``drive.py`` serves through the real worker, ``oracle.py`` teacher-forces the reference,
``compare.py`` judges by the table of equality, ``campaign.py`` does all of it for one model and reports, and
``faults.py`` plants what a campaign must catch. Only tests import this package; it sees both engines.
"""
