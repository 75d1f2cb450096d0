"""Where commands run. A backend turns a spec into what to spawn; nothing else knows where that is."""
