raise ImportError("scikit-learn is for the tests only")
