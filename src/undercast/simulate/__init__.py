"""A forward model of Sentinel-1/2 series with known truth, and of clouds over real images."""

from __future__ import annotations

from undercast.simulate.landscape import LAND
from undercast.simulate.layout import write_dataset
from undercast.simulate.places import BIOMES
from undercast.simulate.series import SimulatedSeries, add_clouds, simulate_series

__all__ = ["BIOMES", "LAND", "SimulatedSeries", "add_clouds", "simulate_series", "write_dataset"]
