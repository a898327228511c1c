"""The in-process engine: PyTorch over transformers' models, which this package is the first to load."""

import transformers

# Before models are loaded, which import scikit-learn for one threshold of assisted decoding and SciPy for the losses of
# object detection. Nothing here uses these, and they take a fifth of the time that a job takes to start.
transformers.utils.is_sklearn_available = lambda: False
transformers.utils.is_scipy_available = lambda: False
