"""The central database: routing and entities, one module per entity holding its table and its queries together."""
