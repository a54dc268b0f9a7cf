"""Room for the embedded language that builds prompts as programs. The language is not written yet: nothing to import."""
