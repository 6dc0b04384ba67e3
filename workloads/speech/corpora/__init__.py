"""Speech corpora: LibriSpeech in its layouts, and synthesised stand-ins."""
