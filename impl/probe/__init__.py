"""Writes probe models: small models whose next token names the token that they read."""
