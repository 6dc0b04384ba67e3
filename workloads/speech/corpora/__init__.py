"""Speech corpora: LibriSpeech in its layouts, and small synthesised ones."""
