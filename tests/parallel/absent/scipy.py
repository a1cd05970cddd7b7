raise ImportError("scipy came with scikit-learn, for the tests only")
