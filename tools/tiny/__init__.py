"""ninfer-tiny: the recipe of the bundled model, from data to artifact.

``data/`` generates examples, ``tokenizer.py`` trains the vocabulary, ``model.py`` and ``deltanet.py`` are the
trainable model, ``train.py`` trains, ``export.py`` writes the Hugging Face directory and the artifact,
``exam.py`` grades any artifact, ``device_run.sh`` is the whole run on a GPU machine.
"""
