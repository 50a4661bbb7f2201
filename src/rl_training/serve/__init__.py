"""A server of exported policies over HTTP and WebSocket. Needs no PyTorch."""
