"""The one MetaData that every entity's table registers with."""

from sqlalchemy import MetaData

metadata = MetaData()
