"""Problems pass between libraries as text, and come back as they were."""

import pytest
from random_problems import arguments

from customconv._bind import ConvProblem

PROBLEM = ConvProblem(input=(2, 4, 7, 8), weight=(6, 2, 3, 3), groups=2, batch_invariant=True)


def test_a_problem_comes_back_from_its_text():
    for each in arguments(3, 500):
        problem = ConvProblem(**each)
        again = ConvProblem.from_text(problem.text)
        assert again.text == problem.text
        assert again.fields == problem.fields


def test_the_text_has_what_fields_leave_out():
    assert ConvProblem.from_text(PROBLEM.text).batch_invariant
    assert " batch_invariant=1 " in PROBLEM.text


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("op=fprop", "op=forward", "unknown op 'forward'"),
        ("dtype=float32", "dtype=int8", "unknown dtype 'int8'"),
        ("N=2", "N=0", "N is out of range: 0"),
        ("N=2", "N=2x", "N is out of range: 2x"),
        ("N=2", "N=", "N is out of range: "),
        ("N=2", "N=99999999999999999999", "N is out of range: 9+"),
        (" N=2", "", "has 'C=4' where N= is expected"),
        ("tf32=0", "tf32=2", "tf32 is out of range: 2"),
        ("x_strides=224,", "x_strides=", "x_strides is out of range: "),
        ("x_strides=", "x_strides=1,", "x_strides has more than four numbers"),
        ("groups=2", "groups=3", "groups must divide C and K"),
        ("epilogue_passes=0", "epilogue_passes=0 more=1", "ends with 'more=1'"),
    ],
)
def test_a_text_that_is_no_problems(old, new, reason):
    assert old in PROBLEM.text
    with pytest.raises(ValueError, match=reason):
        ConvProblem.from_text(PROBLEM.text.replace(old, new, 1))
