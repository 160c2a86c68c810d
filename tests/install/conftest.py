"""The fixtures of made-up components."""

from tests.support.components import component, module, use

__all__ = ["component", "module", "use"]
