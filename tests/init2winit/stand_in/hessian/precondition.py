"""Published beside the package, and imported as a part of it."""

FOUND = True
