"""The names and addresses of a town. Standard library only."""

from __future__ import annotations

from typing import Final

FRONT: Final = "93.184.216.10"
"""Serves the listed names, and `tenant.example`, which is not listed."""
FRONT6: Final = "2606:2800:220:1::10"
EVIL: Final = "93.184.216.66"
EVIL6: Final = "2606:2800:220:1::66"
RESOLVER: Final = "93.184.216.53"
LISTED: Final = "listed.example"
HOSTS: Final = (LISTED, f"{LISTED}:8080", f"*.{LISTED}", f"*.{LISTED}:8080")
"""The list of the commands."""
PRIVATE: Final = "10.66.0.1"
_INNER: Final = {
    "inner": PRIVATE, "loop": "127.0.0.1", "loop6": "::1", "zero": "0.0.0.0", "zero6": "::",
    "metadata": "169.254.169.254", "shared": "100.64.0.66", "mapped": f"::ffff:{PRIVATE}",
    "compatible": f"::{PRIVATE}", "nat64": "64:ff9b::a42:1",
    "nat64-local": "64:ff9b:1::a42:1", "sixtofour": "2002:a42:1::1", "teredo": "2001:0:5db8:d80a::f5bd:fffe",
    "unique": "fd00:66::1", "link6": "fe80::66", "site": "fec0::66", "wire": "168.63.129.16", "bench": "198.18.0.66",
    "class-e": "240.0.0.66", "docs6": "2001:db8::66", "far": "4000::66",
}  # fmt: skip
"""Below the listed name, and so allowed by it: names that lead to addresses of no public host."""
ZONE: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    LISTED: ((FRONT,),),
    "tenant.example": ((FRONT,),),
    "evil.example": ((EVIL, EVIL6),),
    f"evil-{LISTED}": ((EVIL,),),
    f"six.{LISTED}": ((FRONT6,),),
    **{f"{name}.{LISTED}": ((address,),) for name, address in _INNER.items()},
    # Answers to the first question, and to those after it.
    f"rebinds.{LISTED}": ((FRONT,), (PRIVATE,)),
    f"both.{LISTED}": (("93.184.216.11", PRIVATE),),
}
SILENT: Final = "93.184.216.11"
"""Where nobody listens."""


def is_listed(name: str) -> bool:
    return name == LISTED or name.endswith(f".{LISTED}")
