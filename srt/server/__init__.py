"""The roof: HTTP, tokenizer, detokenizer, the engine process and the Python API."""
