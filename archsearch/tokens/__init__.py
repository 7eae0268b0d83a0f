"""Token files: what they look like and how they are made from text; needs neither PyTorch nor Lightning."""
