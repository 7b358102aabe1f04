"""What the disc company sells to a tenant and brand, synchronised from its HTTP API."""
