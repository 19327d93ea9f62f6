"""The speed of the house: every module here runs by itself and prints one table (`make bench` runs them all)."""
