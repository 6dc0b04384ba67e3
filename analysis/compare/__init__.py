"""A study's variants compared, as data: the error table, its baseline, verdicts, power."""
