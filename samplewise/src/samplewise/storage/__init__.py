"""What lies on disk and what several processes share: files written whole, checkpoints, records, provenance."""
