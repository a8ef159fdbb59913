"""What a model is: sizes, FLOPs and bytes, from a config.json, a GGUF header or a built-in name. No torch."""
