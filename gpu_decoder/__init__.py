"""Real language models: what is run on them, and what is recorded of them."""
