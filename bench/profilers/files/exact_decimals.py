"""Decimal arithmetic that refuses to round, in which counters are added up."""

from decimal import Context, Inexact

EXACT = Context(prec=1000, traps=[Inexact])
