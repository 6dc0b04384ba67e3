"""Monitoring: the plan of a study, its survey and the one view of it, what compilers say of it."""
