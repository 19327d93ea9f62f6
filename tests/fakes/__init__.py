"""Wire-level fakes of the outside, and the clock that tests move by hand."""
