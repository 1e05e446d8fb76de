"""An engine behind an HTTP server with OpenAI's completions."""
