"""What a loaded artifact is as a model, by logical name.

``config.py`` checks and freezes the architecture config; ``parameters.py`` expands the list of logical
parameters; ``presets.py`` picks sampling defaults by architecture and thinking mode.
Never imports an engine, torch or HTTP.
"""
