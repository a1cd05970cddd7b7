"""What uses a model while it is trained: streams of examples, publications, and scoring servers."""
