"""Shows failures: as an HTML page, a Markdown summary, or a picture in the terminal."""
