"""A study's variants compared, as data: error table, detectable differences, times to targets."""
