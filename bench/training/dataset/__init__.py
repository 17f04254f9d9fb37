"""Image folders: made, cut down, fetched and checked, without torch."""

from bench.training.dataset.folder_check import ImageFolderSummary, check_image_folder

__all__ = ["ImageFolderSummary", "check_image_folder"]
