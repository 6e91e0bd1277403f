"""The tilt: the label's effect on a latent tree, p(x, y) ~ m(x) exp(c_y + sum_j g_yj(x_j)).

Fitting it, its priors, class-dependent transitions, and turning the result into a plain circuit.
"""
