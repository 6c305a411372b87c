"""One file per format: each turns what people have into images that are read window by window."""
