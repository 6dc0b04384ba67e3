"""What lets a variant into a library's models, one file for each library."""
