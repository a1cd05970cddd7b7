raise ImportError("pandas is for Spark only")
