"""Run folders: store, history, retention, mirror of a bucket, predictions, logs."""
