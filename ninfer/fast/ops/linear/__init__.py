"""y = x Wᵀ over weights in their artifact format: ``contract.py`` says what, ``cpu.py`` how on CPUs."""
