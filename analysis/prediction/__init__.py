"""Samples/s at batch sizes that were not measured, how surely, and where no prediction is made."""

from analysis.prediction.curve import (
    MeasuredBatch,
    PredictedCurve,
    choose_curve,
    fit_curve,
    measured_batches,
)
from analysis.prediction.predicted_batch import Prediction, memory_of, predict_batch
from analysis.prediction.predicted_table import predict

__all__ = [
    "MeasuredBatch",
    "PredictedCurve",
    "Prediction",
    "choose_curve",
    "fit_curve",
    "measured_batches",
    "memory_of",
    "predict",
    "predict_batch",
]
