"""How a model is called."""

import enum

ForwardPassMode = enum.Enum("ForwardPassMode", "TRAIN EVAL", start=0)
