"""Reading interactions and holding out the last item."""

import pytest

from blockattn.demo import data
from blockattn.demo.data import DataError, find_movielens, read_histories, split


def write(folder, text, name="interactions.csv"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def named(histories):
    """{user: item names, oldest first}."""
    return {
        user: [histories.items[item] for item in sequence]
        for user, sequence in zip(histories.users, histories.sequences, strict=True)
    }


def test_order_is_by_timestamp_then_by_line(tmp_path):
    path = write(tmp_path, "user,item,timestamp\nu,late,9\nu,b,5\nw,x,1\nu,a,5\nu,c,5.0\nu,first,-3\n")
    assert named(read_histories(path)) == {"u": ["first", "b", "a", "c", "late"], "w": ["x"]}


@pytest.mark.parametrize(
    "header",
    ["user,item,timestamp", "userId,movieId,timestamp", "USER_ID,Item-ID,Unix Time", "user_id:token,item_id:token,ts:float"],
)
@pytest.mark.parametrize("delimiter", [",", "\t"])
def test_header_names_are_matched_tolerantly(tmp_path, header, delimiter):
    text = f"\ufeffrating,{header}\n3,alice,tt-1,7\n4,bob,tt 2,8\n".replace(",", delimiter)
    assert named(read_histories(write(tmp_path, text))) == {"alice": ["tt-1"], "bob": ["tt 2"]}


def test_columns_may_stand_in_any_order_and_ids_are_strings(tmp_path):
    path = write(tmp_path, 'timestamp,item,user\n2,"a, b",007\n1,1,7\n')
    assert named(read_histories(path)) == {"7": ["1"], "007": ["a, b"]}


@pytest.mark.parametrize("missing", ["user", "item", "timestamp"])
def test_a_missing_column_is_named_with_those_found(tmp_path, missing):
    columns = [column for column in ("user", "item", "timestamp", "price") if column != missing]
    path = write(tmp_path, ",".join(columns) + "\n1,2,3\n")
    with pytest.raises(DataError, match=f"no {missing} column; its columns are: {', '.join(columns)}"):
        read_histories(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("user,item,timestamp\n1,2,3\n1,2,noon\n", "line 3: the timestamp 'noon' is not a number"),
        ("user,item,timestamp\n1,2,nan\n", "line 2: the timestamp 'nan' is not a number"),
        ("user,item,timestamp\n1,2\n", "line 2: 2 fields"),
        ("user,item,timestamp\n", "holds no interactions"),
        ("", "no user column; its columns are: none"),
    ],
)
def test_unusable_lines_are_named(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        read_histories(write(tmp_path, text))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"absent\.csv cannot be read"):
        read_histories(tmp_path / "absent.csv")


def test_movielens_is_found_without_importing_recbole(tmp_path, monkeypatch):
    path = tmp_path / "recbole" / data.MOVIELENS
    path.parent.mkdir(parents=True)
    write(path.parent, "user_id:token\titem_id:token\ttimestamp:float\n1\t2\t3\n", path.name)
    write(tmp_path / "recbole", "raise ImportError", "__init__.py")
    monkeypatch.syspath_prepend(tmp_path)
    assert find_movielens() == path


def test_missing_movielens_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(data.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"pip install --no-deps recbole.*--interactions FILE"):
        find_movielens()


def test_the_held_out_item_is_nowhere_in_the_histories():
    sequences = [[0, 1, 2], [3, 4]]
    test = split(sequences)
    assert (test.histories, test.queries, test.skipped) == ([[0, 1], [3]], [(0, 2), (1, 4)], 0)


def test_validation_uses_neither_the_last_item_nor_the_one_before():
    validation = split([[0, 1, 2], [3, 4]], "validation")
    assert (validation.histories, validation.queries, validation.skipped) == ([[0], []], [(0, 1)], 1)


def test_users_that_cannot_be_ranked_are_skipped_and_counted():
    result = split([[5], [1, 2, 1], [1, 2]])
    assert result.histories == [[], [1, 2], [1]]
    assert result.queries == [(2, 2)]
    assert result.skipped == 2
