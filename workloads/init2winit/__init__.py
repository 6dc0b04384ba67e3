"""A plugin of init2winit: its models with attention variants, for its own trainer."""
