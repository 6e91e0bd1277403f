"""Every tolerance of the tests, once, with its reason."""

# Float64 sums of up to a few hundred thousand terms, and Gauss-Legendre panels on smooth pieces.
MASS = 1e-9
# Raw moments, relative to the absolute moment of the same order.
MOMENT = 1e-8
# The same formula evaluated twice along different paths, in log-space.
LOG = 1e-11
# A scipy twin: its own rounding included.
TWIN = 1e-10
# A weighted fit against the fit to repeated rows.
REPEATED = 1e-9
# A sample test fails by chance once in 10,000 seeds; the seeds are fixed.
FALSE_ALARM = 1e-4
