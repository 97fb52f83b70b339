import json


def test_status_writes_the_matrix_the_page_and_the_readmes(script, toy_root):
    (toy_root / "README.md").write_text("<!-- papers -->\n<!-- /papers -->\n")
    done = script("status.py", "--json", "out/s.json", "--html", "out/s.html", "--write-readmes")
    assert done.returncode == 0, done.stderr
    assert "toy" in done.stdout
    assert "main (default)" in done.stdout
    (table,) = json.loads((toy_root / "out" / "s.json").read_text())["tables"]
    assert (table["paper"], table["table"], table["recipe"], table["laptop"]) == ("toy", "main", True, None)
    page = (toy_root / "out" / "s.html").read_text()
    assert "python scripts/reproduce.py toy main --profile paper" in page
    assert "bash scripts/reproduce.sh toy" in (toy_root / "README.md").read_text()


def test_a_broken_record_is_an_error_without_a_traceback(script, toy_root):
    record = toy_root / "docs" / "results" / "laptop" / "toy" / "main.json"
    record.parent.mkdir(parents=True)
    record.write_text('{"paper": "toy"')
    done = script("status.py")
    assert done.returncode == 2
    assert "main.json: not a record of a table" in done.stderr
    assert "Traceback" not in done.stderr
