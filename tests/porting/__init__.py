"""Programs that were written for tf.estimator, after their ports, and what each port has changed."""
