"""The command line: the option parser that every program shares, and the terminal program ``ninfer``.

``parser`` reads argv against ``spec/options.yaml``; ``option_values`` owns one value, ``option_help`` the
text. Nothing here imports an engine, so that ``--help`` and a wrong option answer at once.
"""
