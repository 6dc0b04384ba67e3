"""Text corpora: C4, Wikipedia and the embedded stand-in, made into token records."""
