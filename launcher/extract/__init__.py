"""Strict extraction of an archive that a hostile pod sent, through directory descriptors that follow nothing."""
