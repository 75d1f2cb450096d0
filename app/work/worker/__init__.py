"""The process that runs turns; retention."""
