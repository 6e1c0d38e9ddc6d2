"""Pretraining, transfer and prediction, and the workers that do them."""
