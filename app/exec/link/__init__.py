"""The worker's side of the supervisor's socket."""
