"""Scale and shift features after the layers of a backbone."""

from evergrow.tuners.ssf.config import SSFConfig
from evergrow.tuners.ssf.layer import SSFTuner

__all__ = ["SSFConfig", "SSFTuner"]
