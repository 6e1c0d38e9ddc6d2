"""Hyperparameter search: spaces, trials, Ray Tune and Optuna."""
