"""Real coding agents against the real server: pinned command-line clients, an engine that plays the model.

``clients.py`` says how each client is installed, pointed at a server and which of its tools do what,
``actor.py`` answers its prompts as a model would, ``test_agents.py`` lets each finish a small task.
"""
