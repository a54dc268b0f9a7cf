"""Room of the embedded language that builds prompts as programs. It is not written yet: there is nothing to import."""
