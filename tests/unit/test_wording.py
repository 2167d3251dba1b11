# SPDX-License-Identifier: Apache-2.0
"""The catalogue of words, whole in tests/golden/words.txt (COLLOC_GOLDEN=write writes it); no other test has any."""

import ast
import re
from pathlib import Path

from slurm_colloc.core.model import Footprint, Placement, Reason, Rejected, SharingMode, because
from slurm_colloc.core.wording import MEANS, WORDS, sentence, shown, words
from tests.unit.golden import compare

ROOT = Path(__file__).resolve().parents[2]
# What a parameter is in the examples: a word, but where its name says otherwise, or the code is one of those.
_BY_END: dict[str, float] = {"_mib": 9000, "_pct": 12.5, "_s": 5400.0, "_min": 90.0}
_LISTS = {"partitions", "groups", "gres", "names", "sources"}
_WORDS = {"several-nodes": {"nodes": "2-4"}, "pack": {"units": "GPU"}, "other-gres": {"gres": "nic"}}
_OPTIONS = {"option": "constraint", "free-now": "as asked", "not-free": "as asked"}


def example(code: str, name: str, form: str) -> str | float | tuple[str, ...]:
    if name == "option":
        return _OPTIONS.get(code, "mps:3")
    if name in _WORDS.get(code, {}):
        return _WORDS[code][name]
    number = next((value for end, value in _BY_END.items() if name.endswith(end)), None)
    if number is None and name in _LISTS:
        return ("a", "b")
    return number or ("slower" if name == "harm" else 3 if form else name.upper())


def examples() -> list[str]:
    lines = []
    for code, text in WORDS.items():
        parts = re.findall(r"{(\w+)(:[^}]*)?}", text)
        lines.append(": ".join((code, words(Reason(code, {name: example(code, name, form) for name, form in parts})))))
    return [*lines, "", *(f"{word}: {means}" for word, means in MEANS.items())]


def test_the_words_of_every_code() -> None:
    text = "\n".join(examples()) + "\n"
    compare("words.txt", text)


def test_every_code_that_is_written_has_words_for_its_parameters() -> None:
    """Of codes and parameters that are written out; the tests of decisions name the others."""
    for path in (ROOT / "slurm_colloc").rglob("*.py"):
        source = path.read_text()
        for call in ast.walk(ast.parse(source)) if "because(" in source else ():
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "because"):
                continue
            code = call.args[0]
            if isinstance(code, ast.Constant) and isinstance(code.value, str):
                asked = set(re.findall(r"{(\w+)", WORDS[code.value]))
                assert asked <= {keyword.arg for keyword in call.keywords}, f"{path}: {code.value}"


def test_what_the_catalogue_does_not_know_is_shown_as_it_is() -> None:
    assert words(because("of-a-later-release", runs=3, name="{x}")) == "of-a-later-release runs=3 name={x}"
    assert words(because("completed-runs", runs=3)) == "completed-runs runs=3"
    assert words(because("margin", factor="much")) == "margin factor=much"


def test_a_number_of_things_a_duration_and_a_list() -> None:
    assert [words(because("cut-while-growing", runs=count)).split(" reached")[0] for count in (1, 2)] == [
        "1 run",
        "2 runs",
    ]
    assert "1.5 h" in words(because("not-settled", job_id="7", sampled_s=5400.0, settle_s=600.0))
    assert "'a', 'b'" in words(because("no-pieces", partitions=("a", "b")))
    assert sentence([because("no-gpu"), because("no-gpu")]).count(";") == 1


def test_json_has_texts_and_codes() -> None:
    why, left = because("no-gpu"), Rejected("mps on g", because("no-mps-daemon"))
    placement = Placement(SharingMode.EXCLUSIVE, None, None, None, "", "", "", None, (why,), (left,))
    record = shown(placement)
    assert record["reasons"] == [words(why)]
    assert record["reasons_codes"] == [{"code": "no-gpu", "params": {}}]
    assert record["rejected"][0]["reason_code"] == {"code": "no-mps-daemon", "params": {}}
    nothing = shown(Footprint(None, None, None, "", "hint", 0, ()))
    assert (nothing["provenance"], nothing["keep_whole"], nothing["keep_whole_code"]) == ([], "", None)
