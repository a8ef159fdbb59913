"""Where the shipped profiles lie: inside the package in a wheel, beside it in a source checkout."""

from __future__ import annotations

from pathlib import Path

import flexinfer


def profiles_folder() -> Path | None:
    """The folder of shipped profiles, or None where it was not installed.

    In a checkout this file is <repository>/estimator/paths.py, and the folder <repository>/profiles.
    """
    package = Path(flexinfer.__file__).parent
    candidates = (package / "profiles", Path(__file__).resolve().parent.parent / "profiles")
    return next((folder for folder in candidates if any(folder.glob("*.json"))), None)


def shipped_profiles() -> list[str]:
    """Names of the profiles that come with the package, sorted."""
    folder = profiles_folder()
    return sorted(path.stem for path in folder.glob("*.json")) if folder else []
