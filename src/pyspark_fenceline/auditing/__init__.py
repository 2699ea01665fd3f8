"""`audit`, `repair` and `backfill` of tables.

Not named `audit`, which is the public function `pyspark_fenceline.audit`.
"""
