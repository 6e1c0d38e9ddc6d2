"""What Weights & Biases gets of runs and reports."""
