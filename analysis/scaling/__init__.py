"""Loss by model size over several studies: power laws, parameters saved, and `scaling`."""
