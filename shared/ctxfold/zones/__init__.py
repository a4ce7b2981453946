"""What a request is put together from."""
