from bench.doctor.installation import package_checks

PROJECT = """[project]
requires-python = "{python}"
dependencies = [{dependencies}]
"""


def checks_of(tmp_path, dependencies, python=">=3.10"):
    lines = ", ".join(f'"{line}"' for line in dependencies)
    text = PROJECT.format(python=python, dependencies=lines)
    (tmp_path / "pyproject.toml").write_text(text)
    return {check.name: check for check in package_checks(tmp_path)}


def test_this_environment_meets_the_projects_own_requirements():
    found = {check.name: check for check in package_checks()}
    assert found["python"].status == "ok"
    assert found["packages"].status == "ok", found["packages"].detail


def test_what_is_absent_or_too_old_is_named_with_the_remedy(tmp_path):
    found = checks_of(tmp_path, ["psutil>=9999", "no-such-package-anywhere", "pydantic>=2"])
    assert found["packages"].status == "missing"
    assert "psutil" in found["packages"].detail
    assert "does not meet >=9999" in found["packages"].detail
    assert "no-such-package-anywhere is not installed" in found["packages"].detail
    assert "pydantic" not in found["packages"].detail
    assert "uv pip install -r requirements.txt" in found["packages"].remedy


def test_requirements_of_other_systems_do_not_count(tmp_path):
    found = checks_of(tmp_path, ["no-such-package-anywhere; python_version < '3.0'"])
    assert found["packages"].detail == "all 0 meet the project's requirements"


def test_a_python_that_is_too_old(tmp_path):
    found = checks_of(tmp_path, [], python=">=99")
    assert found["python"].status == "missing"
    assert "does not meet >=99" in found["python"].detail


def test_an_installed_project_is_asked_by_its_metadata(tmp_path, monkeypatch):
    information = tmp_path / "mlproject-0.1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: mlproject\nVersion: 0.1.0\nRequires-Python: >=3.10\n"
        "Requires-Dist: psutil>=6\nRequires-Dist: fvcore>=99; extra == 'dev'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    found = {check.name: check for check in package_checks(tmp_path / "no-tree")}
    assert found["packages"].detail == "all 1 meet the project's requirements"
