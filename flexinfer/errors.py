"""Every error a user can cause or meet, each with the exit code the command line ends with."""

from __future__ import annotations


class FlexInferError(Exception):
    """Base of all our errors: the message is one clear line, `exit_code` what a command exits with."""

    exit_code = 1


class EngineError(FlexInferError):
    """An op failed on an engine of a machine; the message names the op."""

    exit_code = 1


class UserError(FlexInferError, ValueError):
    """Bad input or a bad request: what is wrong and what to do about it."""

    exit_code = 2


class ModelError(UserError):
    """A model folder or file that is missing, corrupt or not supported."""


class ProfileError(UserError):
    """A hardware profile that is missing, malformed or stale."""


class DoesNotFitError(FlexInferError):
    """A request that no memory holds: names the device, the terms of the sum and the nearest that fits."""

    exit_code = 3
