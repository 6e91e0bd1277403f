"""Rows as users give them: tables in memory, CSV and Parquet files, and Parquet in batches."""
