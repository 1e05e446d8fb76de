"""Backends in any language: a driver that speaks JSON lines over its standard input and
output. See README.md in this folder for the protocol."""
