"""Raw files to catalogs to batches."""
