"""Images: ViT, its data sets, transforms and loss."""
