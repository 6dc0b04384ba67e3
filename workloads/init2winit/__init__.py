"""The plugin: init2winit's own trainer, unmodified, with our attention. It loads nothing of it"""
