"""The directories of `log.dirs`: which logs they have, their checkpoints, copies that move between them."""
