"""The job of `lockstep bisect`: finds the release or commit that changed a program's
result."""
