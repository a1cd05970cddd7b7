"""Programs as they were for tf.estimator (`before`), and as they are here (`after`)."""
