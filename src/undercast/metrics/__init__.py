"""Image and calibration metrics, at once or streaming in constant memory."""

from undercast.metrics.calibration import calibration_metrics, calibration_metrics_per_band
from undercast.metrics.image import image_metrics, within_image_correlation
from undercast.metrics.streaming import CalibrationAccumulator, ImageAccumulator

__all__ = [
    "CalibrationAccumulator",
    "ImageAccumulator",
    "calibration_metrics",
    "calibration_metrics_per_band",
    "image_metrics",
    "within_image_correlation",
]
