"""Programs for people who work on NInfer; they may import everything, nothing imports them."""
