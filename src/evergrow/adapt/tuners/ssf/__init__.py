"""Scale and shift features after the layers of a backbone."""

from evergrow.adapt.tuners.ssf.config import SSFConfig
from evergrow.adapt.tuners.ssf.layer import SSFTuner

__all__ = ["SSFConfig", "SSFTuner"]
