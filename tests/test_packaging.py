"""A wheel built from the sdist works in an environment that holds nothing of this repository."""

import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the sdist from a copy of the tracked tree, and the wheel from the sdist."""
    folder = tmp_path_factory.mktemp("package")
    source = folder / "source"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(source)], check=True)
    diff = subprocess.run(["git", "diff", "HEAD", "--binary"], cwd=ROOT, check=True, capture_output=True).stdout
    if diff:
        subprocess.run(["git", "apply"], cwd=source, input=diff, check=True)
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder / "dist"), str(source)]
    subprocess.run(build, check=True, capture_output=True)
    return next((folder / "dist").glob("*.whl"))


def test_the_wheel_holds_mixers_kernels_and_search_spaces(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for name in ("mixers/m2rnn.py", "kernels/m2rnn/op.py", "kernels/dispatch.py", "search_spaces/demo.yaml"):
        assert f"archsearch/{name}" in names
    assert len([name for name in names if name.startswith("archsearch/search_spaces/published/")]) == 26
    assert not [name for name in names if name.startswith(("mixers/", "kernels/", "tests/"))]
    with tarfile.open(next(wheel.parent.glob("*.tar.gz"))) as sdist:
        assert any(name.endswith("archsearch/mixers/m2rnn.py") for name in sdist.getnames())


def test_inspect_runs_from_the_wheel_beside_a_package_named_kernels(wheel, tmp_path):
    """The dependencies come from this environment by a path; the name `kernels` is Hugging Face's, and stays theirs."""
    environment = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    site = next(environment.glob("lib/python*/site-packages"))
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"])
    python = environment / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", "--force-reinstall", wheel], check=True)
    for name in ("kernels", "mixers"):
        (site / name).mkdir()
        (site / name / "__init__.py").write_text(f"OWNER = 'someone else: {name}'")
    where = "import archsearch, kernels; print(archsearch.__file__, kernels.OWNER)"
    installed = subprocess.check_output([python, "-c", where], text=True, cwd=tmp_path)
    assert str(environment) in installed
    assert "someone else: kernels" in installed
    shown = subprocess.check_output(
        [environment / "bin" / "archsearch", "inspect", "RRRRRRMA"], text=True, cwd=tmp_path
    )
    assert "R6MA" in shown
    assert "gated_deltanet" in shown
