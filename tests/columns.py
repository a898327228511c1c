"""Compares columns of a written file with their definitions in `data_dictionary.csv`."""

from redraft.data_dictionary import definition, definitions


def same(table, columns):
    """Test that each column is defined and each definition is of a column."""
    found = {column: definition(table, column) for column in columns}
    return all(found.values()) and {*found.values()} == {*definitions(table).values()}
