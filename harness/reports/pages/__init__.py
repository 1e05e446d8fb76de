"""Failures that one can see: a page, a summary in Markdown, a picture in the terminal."""
