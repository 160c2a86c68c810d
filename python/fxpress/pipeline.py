"""Plan the stages of an exported program, and save them. torch has no such module."""

from fxpress._stages.errors import StageError
from fxpress._stages.plan import check, plan
from fxpress._stages.planned import Plan, Shared
from fxpress._stages.profile import Profile, profile
from fxpress._stages.save import save_stages

__all__ = ["Plan", "Profile", "Shared", "StageError", "check", "plan", "profile", "save_stages"]
