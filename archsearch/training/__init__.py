"""Train the model of an architecture: a plain step, a LightningModule around it, and a command line around that."""
