"""The place of a node in its cluster: zone, rack, switches and NVLink domain."""
