import pytest


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "text.txt"
    path.write_text("".join(f"the {i * 7 % 11} dogs saw {i * i % 13} cats\n" for i in range(300)))
    return path
