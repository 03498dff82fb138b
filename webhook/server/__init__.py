"""The TLS admission server: bytes in, a decision, a record, bytes out."""
