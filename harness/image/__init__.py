"""The images of a lab, built from the recipes in images/ and stored in the user's cache."""

from harness.image.cache import Cache, EmulatorImage, GuestImage, Image, ImageSet, LabImage, cache_root, ensure_images
from harness.image.keys import SshKey, ensure_key
from harness.image.manifest import FileRecord, Manifest

__all__ = [
    "Cache",
    "EmulatorImage",
    "FileRecord",
    "GuestImage",
    "Image",
    "ImageSet",
    "LabImage",
    "Manifest",
    "SshKey",
    "cache_root",
    "ensure_images",
    "ensure_key",
]
