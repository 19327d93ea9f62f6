"""Reads what a sandbox wrote: worker processes take the hostile image of an outbound.db apart."""

from host.reader.budget import Budget
from host.reader.pool import Reader, ReaderUnavailable
from host.reader.values import BadRow, Snapshot
from host.untrusted import BadFile

__all__ = ["BadFile", "BadRow", "Budget", "Reader", "ReaderUnavailable", "Snapshot"]
