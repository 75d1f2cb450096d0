"""Opens files of a workspace: by descriptors, regular files only, within bounds."""
