"""The controllers of the lab: each writes through the API as its own user, like the real ones (W19)."""

from webhook.lab.controllers.manager import ControllerManager

__all__ = ["ControllerManager"]
