"""Runners: the ways to carry out one forward step behind one seam."""
