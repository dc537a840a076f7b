"""One file for each kind of derived store; `spark_apply.store` is their seam."""
