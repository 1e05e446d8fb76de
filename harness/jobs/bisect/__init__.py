"""The job of `lockstep bisect`: which release or commit changed how a program ends."""
