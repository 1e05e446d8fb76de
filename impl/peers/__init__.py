"""Adapters to released caches: thin, and they declare what those promise."""
