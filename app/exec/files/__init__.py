"""The files of a workspace: reached as commands would reach them, by paths that cannot lead out.

`Files` is the way in; `place` has the reasons why nothing gets out. Nothing is loaded here: the process that searches
in files needs little, and is started for each search.
"""
