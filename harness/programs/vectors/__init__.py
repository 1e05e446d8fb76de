"""Sets of programs with the answers that the reference expects."""

TRACE_FORMAT = "lockstep-trace/1"
SET_FORMAT = "lockstep-vectors/1"
