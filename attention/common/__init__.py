"""What all packages share: files, messages, command lines, the machine. Standard library only."""
