"""Hosts of one database: leases, adoption, takeover, sweep."""
