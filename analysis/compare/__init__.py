"""A study's variants compared, as data: the error table, what its seeds can see, times, scaling."""
