"""Text corpora: C4, Wikipedia and small embedded data, made into token records."""
