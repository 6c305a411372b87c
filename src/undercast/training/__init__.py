"""The parts of `undercast.train`: settings, batches, a step, the run folder, processes."""
