"""The parts of `undercast.product`: COGs, quality layers, the STAC item, Zarr."""
