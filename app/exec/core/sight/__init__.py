"""The one way in which this program opens what lies in a workspace: by descriptors, regular files only, bounded."""
