"""What commands of profile `work` have made in the workspace, looked at before a person's git meets it."""
