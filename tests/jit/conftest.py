"""Kernels that the tests of one run build, the next one finds: their keys tell whether anything has changed."""

import pytest


@pytest.fixture
def kept_cache(pytestconfig, monkeypatch):
    folder = pytestconfig.cache.mkdir("mdops-jit")
    folder.chmod(0o700)
    monkeypatch.setenv("MDOPS_CACHE", str(folder))
    monkeypatch.delenv("MDOPS_JIT", raising=False)
    return folder
