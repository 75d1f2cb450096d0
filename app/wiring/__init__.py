"""The only package that constructs: settings become stores, engine, policy, agent and worker."""
