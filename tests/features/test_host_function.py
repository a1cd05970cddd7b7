import threading

import numpy as np
import tensorflow as tf

from ctr_trainer.features.host_function import host_function


def test_the_calling_thread_computes():
    threads = set()

    def noted(texts):
        threads.add(threading.get_ident())
        return texts

    def compute(texts):  # Two branches, which a pool of threads would compute concurrently.
        return [tf.numpy_function(noted, [texts], tf.string) for _ in range(2)]

    both = host_function(compute)(np.array([b"a"], object))
    assert [each.tolist() for each in both] == [[b"a"], [b"a"]] and threads == {threading.get_ident()}
