"""Search of hyperparameters: Ray Tune executes, Optuna proposes, an inner catalog decides."""
